// SPDX-License-Identifier: Apache-2.0
// The quantizers of a model: nodes of ours, known from their signatures, and ONNX's own two.

const LONGEST_WAY = 1000; // of nodes between codes and who reads them: a file may go in circles

/** All versions of the operator that a node names. */
function versionsOf(node) {
  const domain = ONNX.domains[domainOf(node)] || domainOf(node);
  return REGISTRY.operators.filter((each) =>
    each.domain === domain && [each.onnx, ...each.aliases].includes(node.operator));
}

/** The version that takes as many inputs; undefined for nodes that are none of ours. */
function operatorOf(node) {
  const versions = versionsOf(node);
  const given = node.inputs.reduce((last, name, place) => (name === "" ? last : place + 1), 0);
  const required = (each) => each.inputs.filter((input) => !input.optional).length;
  const found = versions.find((each) => required(each) <= given && given <= each.inputs.length);
  if (versions.length && !found) {
    const wanted = versions.map(required).reverse().join(" or ");
    throw new Refused(`node '${labelOf(node)}' (${node.operator}) must have ${wanted} inputs, got ${given}`);
  }
  return found;
}

const labelOf = (node) => node.name || node.outputs.find((name) => name !== "") || "";

/** Each quantizer once: {node, x, parameters, summary}. */
function quantizersIn(nodes, values) {
  const found = nodes.map((node) => quantizerOf(node, values)).filter((each) => each && each.x);
  const paired = new Set(found.map((each) => each.quantize));
  const shown = new Set();
  const origins = originsIn(nodes);
  return found.filter(({ node, quantize }) => {
    const key = quantize || node;
    if (paired.has(node) || shown.has(key)) return false;
    shown.add(key);
    return true;
  }).map((each) => {
    const both = [each.node, each.quantize].filter((node) => node);
    const parameters = both.flatMap((node) => node.inputs.slice(1));
    return { ...each, parameters, summary: quantizerSummary(each, values, origins) };
  });
}

function quantizerOf(node, values) {
  if (isLinear(node, "QuantizeLinear")) return { node, x: node.inputs[0] };
  if (isLinear(node, "DequantizeLinear")) {
    const { source, lowest, highest } = traced(node.inputs[0], values);
    const quantize = values.producers.get(source);
    if (source !== undefined && quantize && isLinear(quantize, "QuantizeLinear"))
      return { node, quantize, x: quantize.inputs[0], lowest, highest };
    return { node, x: source ?? node.inputs[0], lowest, highest };
  }
  const operator = operatorOf(node);
  return operator && { node, operator, x: node.inputs[0] };
}

/** Where codes come from, and the range that Clips on the way leave; {} where it is not known. */
function traced(name, values) {
  let [source, lowest, highest] = [name, -Infinity, Infinity];
  for (let step = 0; step < LONGEST_WAY; step += 1) {
    const node = values.producers.get(source);
    if (values.stored.has(source) || (node && isLinear(node, "QuantizeLinear")))
      return { source, lowest, highest };
    if (!node || domainOf(node) !== "") return {};
    if (node.operator === "Clip") {
      lowest = Math.max(lowest, values.number(node.inputs[1]) ?? -Infinity);
      highest = Math.min(highest, values.number(node.inputs[2]) ?? Infinity);
    } else if (!moves(node) && !ONNX.selects.includes(node.operator)) return {};
    source = node.inputs[0];
  }
  return {};
}

/** For values that nodes only moved: what they come from. */
function originsIn(nodes) {
  const sources = new Map();
  for (const node of nodes) {
    const source = node.inputs[0];
    if (source && moves(node)) sources.set(node.outputs[0], sources.get(source) ?? source);
  }
  return sources;
}

function quantizerSummary(each, values, origins) {
  const { node, operator, x } = each;
  const inputs = operator ? operator.inputs : LINEAR;
  const parameters = {};
  inputs.slice(1).forEach(({ name }, at) => {
    const given = node.inputs[at + 1];
    if (given) parameters[name] = parameterOf(given, values);
  });
  const byRole = (role) => parameters[(inputs.find((input) => input.role === role) || {}).name];
  const known = Object.values(parameters).every((one) => one.granularity !== "computed");
  const constant = values.isConstant(x);
  const type = operator ? "" : codeType(each, values);
  const pair = each.quantize || constant;
  const read = values.onlyBias.get(node.outputs[0]) ? "bias" : "weight";
  const attributes = operator ? attributesOf(node, operator) : linearAttributes(node);
  return {
    node: labelOf(node),
    operator: operator ? operator.onnx : pair ? "QDQ" : node.operator,
    version: operator ? operator.version : 0,
    tensor: origins.get(x) ?? x,
    shape: sizesText(values.typeOf(origins.get(x) ?? x).sizes),
    role: constant ? read : values.inputs.has(x) ? "input" : "activation",
    constant: constant && known,
    bits: operator ? bitsOf(operator, byRole, attributes) : linearBits(each, type, known),
    codes: !known ? "" : operator ? codesOfOperator(operator, byRole, attributes) : linearCodes(each, type),
    type,
    scale: byRole("scale") ?? null,
    zero_point: byRole("zero-point") ?? null,
    parameters,
    attributes,
  };
}

/** What is said of a parameter; once, however many quantizers share it. */
function parameterOf(name, values) {
  if (!values.summaries.has(name)) values.summaries.set(name, parameterSummary(name, values));
  return values.summaries.get(name);
}

function parameterSummary(name, values) {
  const numbers = values.numbers(name);
  if (!numbers) return { granularity: "computed", axis: null, smallest: null, largest: null };
  const { sizes } = values.stored.get(name);
  const varying = sizes.map((size, axis) => [size, axis - sizes.length]).filter(([size]) => size !== 1);
  const granularity = ["per-tensor", "per-channel"][varying.length] || "per-element";
  const ends = numbers.length ? endsOf(numbers) : [null, null];
  return { granularity, axis: varying.length === 1 ? varying[0][1] : null, smallest: ends[0], largest: ends[1] };
}

function endsOf(numbers) {
  let [low, high] = [numbers[0], numbers[0]];
  for (const each of numbers) [low, high] = [Math.min(low, each), Math.max(high, each)];
  return [low, high];
}

function rangeText({ smallest, largest }) {
  if (smallest === null) return "?";
  return smallest === largest ? String(smallest) : `${smallest}..${largest}`;
}

function bitsOf(operator, byRole, attributes) {
  if (byRole("bit-width")) return rangeText(byRole("bit-width"));
  const [e, m] = ["exponent bit-width", "mantissa bit-width"].map(byRole);
  if (!e || !m) return operator.bits;
  return codesOfOperator(operator, byRole, attributes) ? String(1 + e.smallest + m.smallest) : `e${rangeText(e)} m${rangeText(m)}`;
}

function attributesOf(node, operator) {
  return Object.fromEntries(operator.attributes.map(({ name, onnx, default: usual, mode }) => {
    const { i = 0, s } = node.attributes.find((each) => onnx.includes(each.name)) || { i: usual, s: usual };
    if (typeof usual === "boolean") return [name, Boolean(i)];
    if (typeof usual === "number") return [name, i];
    return [name, mode && s !== undefined ? REGISTRY.modes[s.toUpperCase()] ?? s : s ?? usual];
  }));
}

const linearAttributes = (node) => ({ axis: attributeOf(node, "axis")?.i ?? 1,
  block_size: attributeOf(node, "block_size")?.i ?? 0 });

/** The type of the codes of one of ONNX's own two. */
function codeType({ node, quantize }, values) {
  const [zeroPoint] = (quantize || node).inputs.slice(2).filter((name) => name !== "");
  const names = zeroPoint ? [zeroPoint] : [node.inputs[0], ...(quantize ? [] : node.outputs)];
  const types = names.map((name) => typeName(values.typeOf(name).dtype));
  return types.find((type) => ONNX.codes.includes(type)) || "";
}

function linearBits(each, type, known) {
  if (type === "") return "?";
  const width = widthOf(type);
  if (!known || !type.includes("int")) return String(width);
  const [low, high] = linearRange(each, type);
  if (areSigns(each, low, high)) return "1";
  return String(Math.max(1, Math.ceil(Math.log2(high - low + 1))));
}

const widthOf = (type) => Number(/^u?int(\d+)|float(\d)/.exec(type).slice(1).find((each) => each));

function linearCodes(each, type) {
  if (type === "") return "";
  if (!type.includes("int")) return type in REGISTRY.formats ? `${type} to ${general(REGISTRY.formats[type][3])}` : "";
  const [low, high] = linearRange(each, type);
  if (low > high) return "";
  return areSigns(each, low, high) ? "-1, 1" : `${low}..${high}`;
}

const areSigns = ({ node }, low, high) => low === -1 && high === 1
  && node.metadata.some(({ key, value }) => key === ONNX.codingKey && value === ONNX.signs);

function linearRange({ node, lowest, highest }, type) {
  const width = widthOf(type);
  const half = type.startsWith("u") ? 0 : 2 ** (width - 1);
  const noted = /^(-?\d{1,10})\.\.(-?\d{1,10})$/.exec(
    (node.metadata.find((each) => each.key === ONNX.rangeKey) || {}).value || "");
  const [low, high] = noted ? noted.slice(1).map(Number) : [lowest ?? -Infinity, highest ?? Infinity];
  return [Math.max(-half, low), Math.min(2 ** width - 1 - half, high)];
}
