// The value of "4.1 k", "3.2 KiB" or "14.1 %"; of "-7..7" its width, of "4 x 8" the product.
const units = {
  k: 1e3, M: 1e6, G: 1e9, T: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, us: 1e-6, ms: 1e-3,
};
const measure = text => {
  const [low, high] = text.replace(/[<>]/, "").split("..").map(parseFloat);
  const [first, second] = text.split(" x ");
  if (Number.isNaN(low)) return "";
  if (high !== undefined) return high - low;
  if (second !== undefined) return first * second;
  return low * (units[text.split(" ")[1]] ?? 1);
};
// A click on a heading sorts the table; a second click reverses it. Empty cells stay last.
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const at = head.cellIndex, number = head.className === "number";
  const orders = number ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = orders[head.getAttribute("aria-sort") === orders[0] ? 1 : 0];
  const sign = order === "ascending" ? 1 : -1;
  const key = row => number ? measure(row.cells[at].textContent) : row.cells[at].textContent;
  const compare = (a, b) => number ? a - b : a < b ? -1 : a > b ? 1 : 0;
  const totals = [...body.rows].filter(row => row.className === "total");
  const rows = [...body.rows].filter(row => row.className !== "total");
  const full = rows.filter(row => key(row) !== "").sort((a, b) => sign * compare(key(a), key(b)));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  body.append(...full, ...rows.filter(row => key(row) === ""), ...totals);
};
// A link to a layer opens its details.
const open = hash => {
  const details = document.getElementById(hash.slice(1));
  if (details) { details.open = true; details.scrollIntoView(); }
};
addEventListener("click", event => {
  const link = event.target.closest("a");
  if (link) open(link.hash);
});
open(location.hash);
