// SPDX-License-Identifier: Apache-2.0
// A model that is dropped on the page, or chosen: read here and sent nowhere.

const LARGEST_FILE = 2 ** 30;
const MOST_ROWS = 500;
const MOST_WEIGHTS = 12;
const LONGEST_TEXT = 2000;

class Drop {
  constructor(operators) {
    this.operators = operators;
    const take = ([file]) => file && this.take(file);
    at("file").addEventListener("change", (event) => take(event.target.files));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      take(event.dataTransfer.files);
    });
  }

  async take(file) {
    at("unread").textContent = "";
    try {
      if (file.size > LARGEST_FILE)
        throw new Refused(`${file.name} has ${sizeText(file.size)}, more than this page reads; use anybit inspect`);
      this.show(file.name, new Uint8Array(await file.arrayBuffer()));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      at("unread").textContent = `${file.name}: ${error.message}`;
      at("model").hidden = true;
    }
    this.taken = true;
  }

  show(name, bytes) {
    this.summary = this.read(bytes);
    const header = Object.entries(headerOf(name, bytes.length, this.summary)).flatMap(([key, text]) =>
      [made("dt", { textContent: key }), made("dd", { textContent: printable(text) })]);
    at("header").replaceChildren(...header);
    const rows = this.summary.quantizers.map(rowOf);
    const hidden = rows.length - MOST_ROWS;
    const more = hidden > 0 ? ` The first ${MOST_ROWS} are shown.` : "";
    at("quantizers-count").textContent = rows.length
      ? `${rows.length} quantizers. ${whatRuns(this.summary.quantizers)}${more}` : withoutQuantizers(this.summary.weights);
    at("quantizers").replaceChildren(...(rows.length ? tableOf(rows.slice(0, MOST_ROWS)) : []));
    at("model").hidden = false;
  }

  /** The summary that `anybit inspect --json` has of the same bytes. */
  read(bytes) {
    return summaryOf(modelIn(bytes), this.operators);
  }
}

function tableOf(rows) {
  const headings = Object.keys(rows[0]).filter((name) => rows.some((row) => row[name] !== ""));
  const head = headings.map((textContent) => made("th", { scope: "col", textContent }));
  const cells = (row) => headings.map((name) => made("td", { textContent: printable(row[name]) }));
  return [made("thead", {}, made("tr", {}, ...head)),
    made("tbody", {}, ...rows.map((row) => made("tr", {}, ...cells(row))))];
}

function headerOf(name, size, summary) {
  const each = (all, text) => Object.entries(all).map(text).join(", ");
  const tensors = Object.keys(summary.weights).length;
  const rows = {
    file: `${name} (${sizeText(size)}, constants ${sizeText(summary.constant_bytes)})`,
    producer: summary.producer || "unknown",
    format: `IR ${summary.ir_version}; opsets ${
      each(summary.opsets, ([domain, version]) => `${domain || "ai.onnx"} ${version}`) || "not declared"}`,
    nodes: `${summary.nodes}: ${each(summary.domains, ([domain, count]) => `${count} ${domain || "ai.onnx"}`)}`,
    operators: each(summary.operators, ([kind, count]) => `${count} ${withoutOurs(kind)}`),
    parameters: `${summary.parameters.toLocaleString("en")} in ${tensors} tensor${tensors === 1 ? "" : "s"}`,
    inputs: each(summary.inputs, ([input, type]) => `${input}: ${type}`),
    outputs: each(summary.outputs, ([output, type]) => `${output}: ${type}`),
  };
  if (summary.unknown_operators.length)
    rows.unknown = `${summary.unknown_operators.join(", ")}: this model cannot be run`;
  return rows;
}

/** Without the domain of ours. */
function withoutOurs(kind) {
  const [operator, domain = ""] = kind.split("::").reverse();
  return versionsOf({ domain, operator }).length ? operator : kind;
}

function withoutQuantizers(weights) {
  const all = Object.entries(weights).map(([name, type]) => printable(`${name}: ${type}`));
  const more = all.length > MOST_WEIGHTS ? ` and ${all.length - MOST_WEIGHTS} more` : "";
  const shown = all.slice(0, MOST_WEIGHTS).join(", ") + more;
  return "No quantizers." + (all.length ? ` The weights: ${shown}.` : "");
}

function whatRuns(quantizers) {
  const needed = quantizers.filter((each) => !each.constant && each.version).length;
  const folded = quantizers.filter((each) => each.constant).length;
  return `Nodes that need the operator library when the model runs: ${needed}; `
    + `folded when it is loaded (*): ${folded}.`;
}

function rowOf(quantizer) {
  const { scale } = quantizer;
  return {
    node: quantizer.node,
    operator: `${quantizer.operator} ${quantizer.type}`.trim(),
    quantizes: quantizer.role + (quantizer.constant ? "*" : ""),
    tensor: quantizer.tensor,
    shape: quantizer.shape,
    bits: quantizer.bits,
    scale: valuesText(scale),
    per: scale ? scale.granularity.replace("per-", "") : "",
    codes: quantizer.codes,
    "zero-point": valuesText(quantizer.zero_point),
    rounding: quantizer.attributes.rounding_mode || "",
  };
}

function valuesText(parameter) {
  if (!parameter || parameter.smallest === null) return "";
  const { smallest, largest } = parameter;
  return smallest === largest ? rounded(smallest, 4) : `${rounded(smallest, 2)}..${rounded(largest, 2)}`;
}

/** As Python rounds: ties, which scales often are, to an even digit. */
function rounded(number, digits) {
  const [below, text] = [1 - 2 ** -52, 1].map((each) => (each * number).toExponential(digits - 1));
  return String(Number(/[02468]e/.test(below) ? below : text));
}

function sizeText(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= size) return `${(bytes / size).toFixed(1)} ${unit}`;
  return `${bytes} bytes`;
}

/** A text of a file, cut off where it is long, with escapes for what is not printable. */
function printable(text) {
  const shown = text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}...` : text;
  return shown.replace(/[\p{Cc}\p{Cf}]/gu, (each) =>
    `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`);
}
