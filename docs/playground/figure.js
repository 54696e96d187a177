// SPDX-License-Identifier: Apache-2.0
// Drawings of functions: what is drawn has the colours of the style sheet.

const WIDTH = 720;
const MARGIN = { left: 64, right: 16, top: 12, bottom: 28 };

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** About as many round numbers between two others. */
function ticks(first, last, wanted) {
  const rough = (last - first) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(first / step); at * step <= last && found.length < 3 * wanted; at += 1)
    found.push(at * step);
  return found;
}

const inRange = (number, [first, last]) => number >= first && number <= last;
const short = (number) => String(Number(number.toPrecision(6)));

/** A coordinate; browsers do not take those that are far out. */
const placed = (at) => Math.max(-1e6, Math.min(1e6, at)).toFixed(2);

class Figure {
  /** `svg` is filled; `picked` is told where it is pressed. */
  constructor(svg, height, picked) {
    Object.assign(this, { svg, height });
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH - MARGIN.left;
      const [first, last] = this.xs || [0, 0];
      const x = first + (at / (WIDTH - MARGIN.left - MARGIN.right)) * (last - first);
      if (this.xs && x >= first && x <= last) picked(x);
    });
  }

  /** `lines` are {xs, ys, kind}: those of the kind "steps" rise upright. `mark` is a point or null. */
  draw(xs, ys, lines, mark) {
    this.xs = xs;
    const inside = { width: WIDTH - MARGIN.left - MARGIN.right,
      height: this.height - MARGIN.top - MARGIN.bottom };
    this.x = (x) => MARGIN.left + ((x - xs[0]) / (xs[1] - xs[0])) * inside.width;
    this.y = (y) => MARGIN.top + (1 - (y - ys[0]) / (ys[1] - ys[0])) * inside.height;
    const clip = element("clipPath", { id: `${this.svg.id}-inside` });
    clip.append(element("rect", { x: MARGIN.left, y: MARGIN.top, ...inside }));
    this.svg.replaceChildren(clip, ...this.axes(xs, ys), ...lines.map((line) => this.line(line)));
    if (mark && inRange(mark[0], xs) && inRange(mark[1], ys)) {
      const [cx, cy] = [this.x(mark[0]), this.y(mark[1])];
      this.svg.append(element("circle", { class: "mark", cx, cy, r: 5 }));
    }
  }

  axes(xs, ys) {
    const bottom = this.height - MARGIN.bottom;
    const right = WIDTH - MARGIN.right;
    const made = [];
    for (const x of ticks(...xs, 7)) {
      const kind = x === 0 ? "axis" : "grid";
      made.push(element("path", { class: kind, d: `M${this.x(x)} ${MARGIN.top}V${bottom}` }));
      made.push(element("text", { x: this.x(x), y: bottom + 18, class: "below" }, short(x)));
    }
    for (const y of ticks(...ys, Math.max(4, this.height / 60))) {
      const kind = y === 0 ? "axis" : "grid";
      made.push(element("path", { class: kind, d: `M${MARGIN.left} ${this.y(y)}H${right}` }));
      const place = { x: MARGIN.left - 8, y: this.y(y) + 4, class: "beside" };
      made.push(element("text", place, short(y)));
    }
    return made;
  }

  line({ xs, ys, kind }) {
    let path = "";
    let last = NaN;
    for (let i = 0; i < xs.length; i += 1) {
      const [x, y] = [placed(this.x(xs[i])), placed(this.y(ys[i]))];
      const finite = Number.isFinite(xs[i]) && Number.isFinite(ys[i]);
      if (!finite) last = NaN;
      else if (Number.isNaN(last)) path += `M${x} ${y}`;
      else if (kind !== "steps") path += `L${x} ${y}`;
      else if (ys[i] !== last || i === xs.length - 1) path += `H${x}V${y}`;
      if (finite) last = ys[i];
    }
    return element("path", { class: kind, d: path, "clip-path": `url(#${this.svg.id}-inside)` });
  }
}
