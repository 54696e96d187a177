// SPDX-License-Identifier: Apache-2.0
// The page: a form on one side, what the operator makes of numbers on the other.

const SAMPLES = 2049;
const MOST_CODES = 64;
const at = (name) => document.getElementById(name);

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

class Playground {
  constructor(operators) {
    this.operators = operators;
    this.form = at("form");
    const picked = (x) => {
      this.form.elements.x.value = short(x);
      this.update();
    };
    this.steps = new Figure(at("steps"), 380, picked);
    this.errors = new Figure(at("errors"), 150, picked);
    at("operator").append(choice("operator", REGISTRY.operators.map((each) => each.name)));
    // Not all fields stand inside of the form.
    document.addEventListener("input", (event) => event.target.form && this.changed(event.target));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    at("copy").addEventListener("click", () => this.copy());
    window.addEventListener("hashchange", () => this.open());
    this.open();
  }

  /** Shows what the address says. */
  open() {
    if (this.said !== undefined && location.hash.slice(1) === this.said) return;
    const given = new URLSearchParams(location.hash.slice(1));
    for (const each of ["x", "from", "to"]) {
      const control = this.form.elements[each];
      control.value = given.has(each) ? given.get(each) : control.defaultValue;
    }
    this.choose(given.get("operator"), given);
  }

  choose(name, given) {
    const found = REGISTRY.operators.find((each) => each.name === name);
    this.operator = found || REGISTRY.operators[0];
    this.form.elements.operator.value = this.operator.name;
    at("fields").replaceChildren(...fieldsOf(this.operator, given));
    at("summary").textContent = this.operator.summary;
    at("body").textContent = this.operator.body;
    this.update();
  }

  changed({ name, value }) {
    if (name === "operator") return this.choose(value, this.filled());
    const inFormat = this.operator.inputs.some((each) => each.name === name);
    if (name === "format") fillFormat(this.form, this.operator, value);
    else if (inFormat && this.form.elements.format) this.form.elements.format.selectedIndex = 0;
    return this.update();
  }

  /** All that the form holds. */
  filled() {
    const given = new URLSearchParams();
    for (const { name, type, checked, value } of this.form.elements)
      if (name && name !== "format" && (value !== "" || type === "checkbox"))
        given.set(name, type === "checkbox" ? String(checked) : value);
    return given;
  }

  async copy() {
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    at("copied").textContent = copied ? "copied" : "the address of this page is the link";
    setTimeout(() => (at("copied").textContent = ""), 4000);
  }

  update() {
    this.said = this.filled().toString();
    history.replaceState(null, "", `#${this.said}`);
    const said = at("refused");
    said.textContent = "";
    for (const each of this.form.elements) each.removeAttribute?.("aria-invalid");
    try {
      this.call = callIn(this.form, this.operator);
      this.showNumber();
      this.showSweep();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      said.textContent = error.message;
      const name = error.message.split(" ")[0];
      this.form.elements[name]?.setAttribute?.("aria-invalid", "true");
    }
    at("results").classList.toggle("stale", said.textContent !== "");
  }

  /** The operator on some numbers: {xs, ys, result}, with x as its type has it. */
  applied(numbers) {
    const { operator, xType, parameters, attributes } = this.call;
    const x = this.operators.tensor(xType, numbers);
    const inputs = operator.inputs.slice(1).map(({ name }) =>
      parameters[name] === undefined ? null : literal(parameters[name]));
    const result = this.operators.apply(operator.name, [x, ...inputs], attributes);
    this.call.type = result.type;
    return { x, xs: this.operators.numbers(x), ys: this.operators.numbers(result), result };
  }

  showNumber() {
    const number = numberIn("x", this.form.elements.x.value);
    const { x, xs, ys, result } = this.applied([number]);
    this.mark = [xs[0], ys[0]];
    const found = codeOf(this.call, ys[0]);
    const value = this.valueOf(ys[0]);
    const rows = {
      [`x in ${x.type}`]: [written(xs[0]), hexadecimal(x.bytes)],
      [`result, ${result.type}`]: [written(ys[0]), hexadecimal(result.bytes)],
      code: [found ? found.code : "none", found ? found.bits : ""],
      error: [written(value - xs[0]), ""],
    };
    const lines = Object.entries(rows).map(([name, cells]) => made("tr", {},
      made("th", { scope: "row", textContent: name }),
      ...cells.map((textContent) => made("td", { textContent }))));
    at("number").replaceChildren(...lines);
  }

  /** The value that a result stands for: it may be a code itself. */
  valueOf(y) {
    if (!this.call.type.includes("int")) return y;
    return (y - (byRole(this.call, "zero-point") || 0)) * byRole(this.call, "scale");
  }

  /** The least and the largest value, if large numbers give the same as larger ones. */
  saturated() {
    const large = this.call.xType === "float16" ? 6e4 : 3e38;
    const { ys } = this.applied([-large, -large / 4, large / 4, large]);
    if (ys[0] !== ys[1] || ys[2] !== ys[3]) return [NaN, NaN];
    return [this.valueOf(ys[0]), this.valueOf(ys[3])].sort((a, b) => a - b);
  }

  /** The ends of the drawing: those that are given, else a little more than the values. */
  ends() {
    const { from, to } = this.form.elements;
    let [first, last] = this.saturated();
    if (!(last > first)) {
      const width = Math.min(byRole(this.call, "bit-width of the input") ?? 4, 16);
      const scale = byRole(this.call, "scale of the input") ?? byRole(this.call, "scale");
      last = 2 ** (width - 1) * Math.abs(scale);
      if (!(last > 0 && Number.isFinite(last))) last = 1;
      first = -last;
    }
    const more = 0.12 * (last - first);
    const ends = [first - more, last + more];
    if (from.value.trim() !== "") ends[0] = numberIn("from", from.value);
    if (to.value.trim() !== "") ends[1] = numberIn("to", to.value);
    if (!(ends[0] < ends[1] && Number.isFinite(ends[1] - ends[0])))
      throw new Refused(`from must lie below to, got ${written(ends[0])} and ${written(ends[1])}`);
    return ends;
  }

  showSweep() {
    const [first, last] = this.ends();
    const step = (last - first) / (SAMPLES - 1);
    const { xs, ys } = this.applied(Array.from({ length: SAMPLES }, (_, i) => first + i * step));
    const codes = this.call.type.includes("int");
    const slope = { xs: [first, last], ys: [first, last], kind: "slope" };
    const steps = { xs, ys, kind: "steps" };
    const height = around([...ys], codes ? [] : [first, last]);
    this.steps.draw([first, last], height, codes ? [steps] : [slope, steps], this.mark);
    const errors = ys.map((y, i) => this.valueOf(y) - xs[i]);
    const error = [this.mark[0], this.valueOf(this.mark[1]) - this.mark[0]];
    // What is beyond the values is not measured: the error has no end there.
    const margin = Math.ceil(SAMPLES / 10);
    const reach = around([...errors.slice(margin, -margin)], [0]);
    this.errors.draw([first, last], reach, [{ xs, ys: errors, kind: "slope error" }], error);
    this.showCodes([...new Set(ys)].filter(Number.isFinite).sort((a, b) => a - b));
  }

  showCodes(values) {
    const few = values.length <= MOST_CODES;
    // Samples need not meet all of many values.
    at("count").textContent = few ? `${values.length} values in the drawing`
      : `More than ${MOST_CODES} values in the drawing: too many for a table.`;
    const rows = (few ? values : []).map((value) => {
      const { code = "", bits = "" } = codeOf(this.call, value) || {};
      const { bytes } = this.operators.tensor(this.call.type, [value]);
      const cells = [written(value), code, bits, hexadecimal(bytes)];
      return made("tr", {}, ...cells.map((textContent) => made("td", { textContent })));
    });
    at("codes").replaceChildren(...rows);
    at("codes").closest("table").hidden = !few;
  }
}

/** A little more than some numbers reach. */
function around(numbers, others) {
  const all = [...numbers, ...others].filter(Number.isFinite);
  let [low, high] = [Math.min(...all), Math.max(...all)];
  if (!(high > low)) [low, high] = all.length ? [low - 1, high + 1] : [-1, 1];
  const more = 0.06 * (high - low);
  return [low - more, high + more];
}

function written(number) {
  if (Object.is(number, -0)) return "-0";
  return Number.isFinite(number) ? String(Number(number.toPrecision(9))) : pythonic(number);
}

const pythonic = (number) => (Number.isNaN(number) ? "nan" : number > 0 ? "inf" : "-inf");

const operators = await Operators.load(await unpacked(MODULE));
const page = new Playground(operators);
const model = new Drop(operators);
globalThis.playground = { operators, page, model, Refused };
document.documentElement.dataset.ready = "yes";
