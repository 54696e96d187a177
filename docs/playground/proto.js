// SPDX-License-Identifier: Apache-2.0
// Reads the parts of ONNX files that are shown. Files are hostile: every length is checked, nesting
// and the number of messages are bounded, and what is not asked for is passed over.

const DEEPEST = 100; // as other readers of this format have it
const MOST_MESSAGES = 1_000_000;
const MOST_NUMBERS = 2 ** 25; // outside of raw data

const VALUE_INFO = { 1: ["name", "text"], 2: ["type", {
  1: ["tensor", { 1: ["dtype", "integer"], 2: ["shape", {
    1: ["sizes", { 1: ["value", "integer"], 2: ["name", "text"] }, "all"] }] }] }] };
const ENTRY = { 1: ["key", "text"], 2: ["value", "text"] };
const TENSOR = { 1: ["sizes", "integer", "all"], 2: ["dtype", "integer"], 4: ["floats", "float", "all"],
  5: ["int32s", "integer", "all"], 7: ["int64s", "integer", "all"], 8: ["name", "text"],
  9: ["raw", "bytes"], 10: ["doubles", "double", "all"], 11: ["uint64s", "integer", "all"],
  14: ["external", "integer"] };
const GRAPH = { 5: ["initializers", TENSOR, "all"], 11: ["inputs", VALUE_INFO, "all"],
  12: ["outputs", VALUE_INFO, "all"], 13: ["values", VALUE_INFO, "all"] };
const ATTRIBUTE = { 1: ["name", "text"], 2: ["f", "float"], 3: ["i", "integer"], 4: ["s", "text"],
  5: ["t", TENSOR], 6: ["g", GRAPH], 7: ["floats", "float", "all"], 8: ["ints", "integer", "all"],
  11: ["graphs", GRAPH, "all"] };
const NODE = { 1: ["inputs", "text", "all"], 2: ["outputs", "text", "all"], 3: ["name", "text"],
  4: ["operator", "text"], 5: ["attributes", ATTRIBUTE, "all"], 7: ["domain", "text"],
  9: ["metadata", ENTRY, "all"] };
GRAPH[1] = ["nodes", NODE, "all"];
const FUNCTION = { 1: ["name", "text"], 10: ["domain", "text"] };
const MODEL = { 1: ["ir", "integer"], 2: ["producer", "text"], 3: ["producerVersion", "text"],
  7: ["graph", GRAPH], 8: ["opsets", { 1: ["domain", "text"], 2: ["version", "integer"] }, "all"],
  25: ["functions", FUNCTION, "all"] };

const broken = (why) => new Refused(`this is not a readable ONNX file: ${why}`);

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.messages = 0;
    this.numbers = 0;
  }

  /** The fields of a message that a schema knows. Those that are all wanted are arrays. */
  message(schema, first, end, depth = 0) {
    if (depth > DEEPEST) throw broken(`it is nested more than ${DEEPEST} times`);
    if ((this.messages += 1) > MOST_MESSAGES) throw broken(`it has more than ${MOST_MESSAGES} parts`);
    const found = {};
    for (const [name, , all] of Object.values(schema)) if (all) found[name] = [];
    this.at = first;
    while (this.at < end) {
      const tag = this.varint(end);
      const [field, wire] = [Math.floor(tag / 8), tag % 8];
      const [from, to] = this.extent(wire, end);
      if (field in schema) this.take(schema[field], wire, from, to, found, depth);
      this.at = to;
    }
    return found;
  }

  take([name, kind, all], wire, from, to, found, depth) {
    const put = (value) => (all ? found[name].push(value) : (found[name] = value));
    if (typeof kind === "object" || kind === "text" || kind === "bytes") {
      if (wire !== 2) throw broken(`${name} is of another type`);
      if (typeof kind === "object") return put(this.message(kind, from, to, depth + 1));
      const bytes = this.bytes.subarray(from, to);
      return put(kind === "text" ? new TextDecoder().decode(bytes) : bytes);
    }
    // Several numbers may lie side by side in one field.
    for (this.at = from; this.at < to;) put(this.number(kind, to));
    return undefined;
  }

  number(kind, end) {
    if ((this.numbers += 1) > MOST_NUMBERS) throw broken(`it spells out more than ${MOST_NUMBERS} numbers`);
    if (kind === "integer") return this.varint(end);
    const size = kind === "float" ? 4 : 8;
    if (this.at + size > end) throw broken("a number is cut off");
    this.at += size;
    const at = this.at - size;
    return size === 4 ? this.view.getFloat32(at, true) : this.view.getFloat64(at, true);
  }

  /** Where the contents of a field begin and end. */
  extent(wire, end) {
    const first = this.at;
    if (wire === 0) this.varint(end);
    else if (wire === 1 || wire === 5) this.at += wire === 1 ? 8 : 4;
    else if (wire === 2) {
      const length = this.varint(end);
      const from = this.at;
      if (!(length >= 0 && length <= end - from)) throw broken("it is cut off");
      return [from, from + length];
    } else throw broken(`it has a field of the unknown type ${wire}`);
    if (this.at > end) throw broken("it is cut off");
    return [first, this.at];
  }

  /** An integer of 64 bits with its sign; beyond 2^53 the nearest that a number holds. */
  varint(end) {
    let low = 0;
    for (let i = 0; i < 7; i += 1) {
      const byte = this.byte(end);
      low += (byte & 127) * 2 ** (7 * i);
      if (byte < 128) return low;
    }
    let whole = BigInt(low);
    for (let i = 7n; i < 10n; i += 1n) {
      const byte = this.byte(end);
      whole += BigInt(byte & 127) << (7n * i);
      if (byte < 128) return Number(BigInt.asIntN(64, whole));
    }
    throw broken("an integer has no end");
  }

  byte(end) {
    if (this.at >= end) throw broken("it is cut off");
    this.at += 1;
    return this.bytes[this.at - 1];
  }
}

/** The model that bytes hold, as MODEL has it. */
function modelIn(bytes) {
  const model = new Reader(bytes).message(MODEL, 0, bytes.length);
  if (!model.graph) throw broken("it has no graph");
  return model;
}
