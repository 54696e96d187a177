// SPDX-License-Identifier: Apache-2.0
// What `anybit inspect` says of a model, with the same names and words; nothing of it is computed:
// scales that nodes compute stay unknown.

const ONNX = REGISTRY.onnx;
const LINEAR = [{ name: "x", role: "data" }, { name: "scale", role: "scale" },
  { name: "zero-point", role: "zero-point" }];
const LINEAR_DOMAINS = ["", "com.microsoft"];
const LARGEST_PARAMETER = 2 ** 24;

/** The nodes of a graph, each followed by those of the graphs inside it. */
function* nodesIn(graph) {
  for (const node of graph.nodes) {
    yield node;
    for (const { g, graphs } of node.attributes)
      for (const inner of g ? [g, ...graphs] : graphs) yield* nodesIn(inner);
  }
}

function* graphsIn(graph) {
  yield graph;
  for (const node of graph.nodes)
    for (const { g, graphs } of node.attributes)
      for (const inner of g ? [g, ...graphs] : graphs) yield* graphsIn(inner);
}

const domainOf = (node) => (node.domain === "ai.onnx" ? "" : node.domain || "");
const attributeOf = (node, name) => node.attributes.find((each) => each.name === name);
const product = (sizes) => sizes.reduce((all, size) => all * size, 1);
const isLinear = (node, name) => node.operator === name && LINEAR_DOMAINS.includes(domainOf(node));
const kindOf = (node) => (domainOf(node) ? `${domainOf(node)}::${node.operator}` : node.operator);
const moves = (node) => domainOf(node) === "" && ONNX.moves.includes(node.operator);

function typeName(dtype) {
  return dtype === ONNX.text ? "string" : (ONNX.types[dtype] || ["?"])[0];
}

function sizesText(sizes) {
  if (!sizes) return "[...]";
  return `[${sizes.map((each) => (each === null || each === "" ? "?" : each)).join(", ")}]`;
}

/** What is declared of a value: {dtype, sizes}. */
function declared({ type: { tensor = {} } = {} }) {
  const sizes = tensor.shape && tensor.shape.sizes.map(({ name, value }) =>
    value !== undefined && value >= 0 ? value : name || null);
  return { dtype: tensor.dtype, sizes };
}

function bytesOf({ dtype, sizes }) {
  const [, bits] = ONNX.types[dtype] || ["?", 0];
  return Math.ceil((product(sizes) * bits) / 8);
}

/** All that is known of the values of a model by name. */
class Values {
  constructor(model, operators) {
    this.operators = operators;
    this.stored = new Map(); // tensors, those of Constant nodes included
    this.declared = new Map();
    this.producers = new Map();
    this.onlyBias = new Map(); // whether all who read a value add it to sums of products
    this.summaries = new Map();
    this.constants = new Set();
    for (const graph of graphsIn(model.graph)) {
      for (const each of [...graph.values, ...graph.inputs, ...graph.outputs])
        this.declared.set(each.name, declared(each));
      for (const each of graph.initializers) this.stored.set(each.name, each);
    }
    for (const node of nodesIn(model.graph)) this.add(node);
    this.inputs = new Set(model.graph.inputs.map((each) => each.name));
  }

  add(node) {
    const tensor = domainOf(node) === "" && node.operator === "Constant" && constantOf(node);
    if (tensor) this.stored.set(node.outputs[0], tensor);
    const given = node.inputs.filter((name) => name !== "");
    const constant = given.length > 0 && given.every((name) => this.isConstant(name));
    for (const name of node.outputs) {
      this.producers.set(name, node);
      if (constant || tensor) this.constants.add(name);
    }
    const adds = domainOf(node) === "" && ONNX.biased.includes(node.operator);
    node.inputs.forEach((name, place) => {
      this.onlyBias.set(name, (this.onlyBias.get(name) ?? true) && adds && place === 2);
    });
  }

  isConstant(name) {
    return this.stored.has(name) || this.constants.has(name);
  }

  /** Those of a small stored tensor; null for others. */
  numbers(name) {
    return this.stored.has(name) ? numbersOf(this.stored.get(name), this.operators) : null;
  }

  /** The only one. */
  number(name) {
    const tensor = this.stored.get(name);
    const all = tensor && product(tensor.sizes) === 1 ? this.numbers(name) : null;
    return all ? all[0] : undefined;
  }

  typeOf(name) {
    return this.stored.get(name) || this.declared.get(name) || {};
  }

  typed(name) {
    const { dtype, sizes } = this.typeOf(name);
    return typeName(dtype) + sizesText(sizes);
  }
}

/** The tensor that a Constant holds. */
function constantOf(node) {
  for (const { name, t, f, i, floats, ints } of node.attributes) {
    if (name === "value" && t) return t;
    if (name === "value_float") return { dtype: 1, sizes: [], floats: [f ?? 0] };
    if (name === "value_int") return { dtype: 7, sizes: [], int64s: [i ?? 0] };
    if (name === "value_floats") return { dtype: 1, sizes: [floats.length], floats };
    if (name === "value_ints") return { dtype: 7, sizes: [ints.length], int64s: ints };
  }
  return null;
}

/** The numbers of a small tensor; null where they lie elsewhere or are no numbers. */
function numbersOf(tensor, operators) {
  const count = product(tensor.sizes);
  const [type, bits] = ONNX.types[tensor.dtype] || [];
  if (!type || tensor.external || count > LARGEST_PARAMETER) return null;
  if (tensor.raw === undefined) {
    const fields = ["floats", "int32s", "int64s", "doubles", "uint64s"];
    const given = fields.map((name) => tensor[name] || []).find((each) => each.length) || [];
    if (type in SIZES && given.length === count && !type.includes("float16")) return given;
    return count === 0 ? [] : null;
  }
  if (tensor.raw.length !== Math.ceil((count * bits) / 8))
    throw broken(`the data of '${tensor.name}' do not fill its shape`);
  if (type in SIZES) return operators.numbers({ type, shape: [count], bytes: tensor.raw });
  return bits < 8 && type.includes("int") ? unpackedIntegers(tensor.raw, count, bits, type) : null;
}

function unpackedIntegers(raw, count, bits, type) {
  const half = type.startsWith("u") ? 0 : 2 ** (bits - 1);
  return Array.from({ length: count }, (_, i) => {
    const code = (raw[Math.floor((i * bits) / 8)] >> ((i * bits) % 8)) & (2 ** bits - 1);
    return code < half || half === 0 ? code : code - 2 * half;
  });
}

/** All of it, as the summary of `anybit inspect --json` has it. */
function summaryOf(model, operators) {
  const values = new Values(model, operators);
  const nodes = [...nodesIn(model.graph)];
  const quantizers = quantizersIn(nodes, values);
  const tensors = [...graphsIn(model.graph)].flatMap((graph) => graph.initializers);
  const constants = nodes.filter((each) => each.operator === "Constant")
    .map((each) => attributeOf(each, "value")?.t).filter((each) => each);
  const weights = weightsIn(values, quantizers);
  const stored = new Set(model.graph.initializers.map((each) => each.name));
  const listed = (all) => Object.fromEntries(all.map(({ name }) => [name, values.typed(name)]));
  return {
    ir_version: model.ir || 0,
    producer: `${model.producer || ""} ${model.producerVersion || ""}`.trim(),
    opsets: Object.fromEntries(model.opsets.map((each) => [each.domain || "", each.version])),
    domains: counted(nodes.map(domainOf)),
    operators: counted(nodes.map(kindOf)),
    nodes: nodes.length,
    constant_bytes: [...tensors, ...constants].map(bytesOf).reduce((a, b) => a + b, 0),
    weights: Object.fromEntries(weights.map((name) => [name, values.typed(name)])),
    parameters: weights.reduce((all, name) => all + product(values.stored.get(name).sizes), 0),
    inputs: listed(model.graph.inputs.filter((each) => !stored.has(each.name))),
    outputs: listed(model.graph.outputs),
    quantizers: quantizers.map((each) => each.summary),
    unknown_operators: unknownIn(nodes, model),
  };
}

/** How many there are of each, most common first. */
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return Object.fromEntries([...counts].sort((a, b) => b[1] - a[1]));
}

/** Stored tensors of more than one number that are neither parameters nor shapes. */
function weightsIn(values, quantizers) {
  const codes = new Set(quantizers.map((each) => each.x));
  const parameters = new Set(quantizers.flatMap((each) => each.parameters));
  return [...values.stored.keys()].filter((name) => {
    const { sizes, dtype } = values.stored.get(name);
    if (sizes.length === 0 || (parameters.has(name) && !codes.has(name))) return false;
    return codes.has(name) || /float|bfloat/.test(typeName(dtype));
  });
}

function unknownIn(nodes, model) {
  const opset = (model.opsets.find((each) => !each.domain || each.domain === "ai.onnx") || {}).version ?? 1;
  const local = new Set((model.functions || []).map((each) => `${each.domain || ""}::${each.name}`));
  const known = (node) => {
    const domain = domainOf(node);
    const name = `${domain}::${node.operator}`;
    if (local.has(name) || ONNX.runtimeDomains.includes(domain) || ONNX.others.includes(name)) return true;
    if (domain === "") return opset > ONNX.newest || ONNX.standard[node.operator] <= opset;
    return versionsOf(node).length > 0;
  };
  const unknown = nodes.filter((node) => !known(node));
  return [...new Set(unknown.map((each) => `${domainOf(each) || "ai.onnx"}::${each.operator}`))].sort();
}
