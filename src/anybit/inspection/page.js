// A click on a heading sorts the table; a second click reverses it. Empty cells stay last.
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const at = head.cellIndex, number = head.className === "number";
  const orders = number ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = orders[head.getAttribute("aria-sort") === orders[0] ? 1 : 0];
  const sign = order === "ascending" ? 1 : -1;
  const key = row => number ? row.cells[at].dataset.v : row.cells[at].textContent;
  const compare = (a, b) => number ? a - b : a < b ? -1 : a > b ? 1 : 0;
  const totals = [...body.rows].filter(row => row.className === "total");
  const rows = [...body.rows].filter(row => row.className !== "total");
  const full = rows.filter(key).sort((a, b) => sign * compare(key(a), key(b)));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  body.append(...full, ...rows.filter(row => !key(row)), ...totals);
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
