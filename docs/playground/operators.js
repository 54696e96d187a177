// SPDX-License-Identifier: Apache-2.0
// The operators, computed by the module of WebAssembly that is made of their C++.

/** What an operator refuses: the message shows the value and the remedy. */
class Refused extends Error {}

const SIZES = { float32: 4, float64: 8, float16: 2, bfloat16: 2, bool: 1,
  int8: 1, int16: 2, int32: 4, int64: 8, uint8: 1, uint16: 2, uint32: 4, uint64: 8 };
const RECORD = 24; // bytes that the module has for one
const NOT_SUPPORTED = 52; // what WASI calls ENOSYS: the module has no files and no clock

class Operators {
  /** `bytes` are those of the module. */
  static async load(bytes) {
    return new Operators(await WebAssembly.compile(bytes));
  }

  constructor(compiled) {
    this.compiled = compiled;
    this.start();
    this.operators = this.names("operator_name");
    this.types = this.names("type_name");
  }

  /**
   * Apply an operator.
   *
   * Inputs are null or {type, shape, bytes, literal}: a literal's type carries no intent, like
   * that of a plain number. Attributes are flags, integers and words. Gives {type, shape, bytes}.
   */
  apply(name, inputs, attributes = {}) {
    const index = this.operators.indexOf(name);
    if (index < 0) throw new Refused(`there is no operator '${name}'`);
    const text = Object.entries(attributes).map(([key, value]) => `${key}\0${spelled(value)}\0`);
    const { shape } = inputs[0];
    return this.holding((put, room) => {
      const tensors = new Uint8Array(RECORD * inputs.length);
      const view = new DataView(tensors.buffer);
      inputs.forEach((input, at) => input && this.describe(view, RECORD * at, input, put));
      const words = new TextEncoder().encode(text.join(""));
      const out = room(8 * count(shape));
      const records = put(tensors);
      const called = this.exports.apply(index, records, put(words), words.length, out);
      const type = this.types[called];
      return { type, shape, bytes: this.copied(out, count(shape) * SIZES[type]) };
    });
  }

  /** The numbers of a tensor. */
  numbers({ type, shape, bytes }) {
    return new Float64Array(this.converted(bytes, type, "float64", count(shape)).buffer);
  }

  /** A tensor of one dimension. */
  tensor(type, numbers) {
    const values = Float64Array.from(numbers);
    const bytes = this.converted(new Uint8Array(values.buffer), "float64", type, values.length);
    return { type, shape: [values.length], bytes };
  }

  converted(bytes, from, to, length) {
    const [source, target] = [from, to].map((type) => this.types.indexOf(type));
    return this.holding((put, room) => {
      const out = room(8 * length);
      this.exports.convert(source, put(bytes), target, out, length);
      return this.copied(out, length * SIZES[to]);
    });
  }

  start() {
    const host = { refuse: (_, text, length) => {
      throw new Refused(new TextDecoder().decode(this.copied(text, length)));
    } };
    const empty = (...sizes) => {
      const view = new DataView(this.exports.memory.buffer);
      sizes.forEach((address) => view.setUint32(address, 0));
      return 0;
    };
    // An environment without variables, and nothing else.
    const system = { environ_sizes_get: empty, environ_get: () => 0 };
    const lacking = { get: (known, name) => known[name] || (() => NOT_SUPPORTED) };
    const imports = { host, wasi_snapshot_preview1: new Proxy(system, lacking) };
    this.exports = new WebAssembly.Instance(this.compiled, imports).exports;
    this.exports._initialize();
  }

  /** Runs what needs memory of the module, `put(bytes)` and `room(size)`, which then is released. */
  holding(work) {
    const held = [];
    const room = (size) => {
      const address = this.exports.allocate(Math.max(size, 1));
      if (address === 0) throw new Refused(`no memory for ${size} bytes`);
      held.push(address);
      return address;
    };
    const put = (bytes) => {
      const address = room(bytes.length);
      new Uint8Array(this.exports.memory.buffer).set(bytes, address);
      return address;
    };
    try {
      const result = work(put, room);
      held.forEach((address) => this.exports.release(address));
      return result;
    } catch (error) {
      this.start(); // what was thrown has left the instance in the middle of a call
      throw error;
    }
  }

  copied(address, size) {
    return new Uint8Array(this.exports.memory.buffer).slice(address, address + size);
  }

  describe(view, at, { type, shape, bytes, literal }, put) {
    const code = this.types.indexOf(type);
    if (code < 0) throw new Refused(`'${type}' is no type of numbers`);
    if (bytes.length !== count(shape) * SIZES[type]) throw new Refused("bytes do not fill the shape");
    const sizes = new Uint8Array(BigInt64Array.from(shape, BigInt).buffer);
    view.setUint32(at, put(bytes), true);
    view.setUint8(at + 4, code);
    view.setInt32(at + 8, shape.length, true);
    view.setUint32(at + 12, put(sizes), true);
    view.setUint8(at + 20, 1);
    view.setUint8(at + 21, literal ? 1 : 0);
  }

  names(of) {
    const found = [];
    for (let address; (address = this.exports[of](found.length)) !== 0;) {
      const memory = new Uint8Array(this.exports.memory.buffer);
      found.push(new TextDecoder().decode(memory.slice(address, memory.indexOf(0, address))));
    }
    return found;
  }
}

/** A bare number as an input. */
function literal(number) {
  const bytes = new Uint8Array(Float64Array.of(number).buffer);
  return { type: "float64", shape: [], bytes, literal: true };
}

const count = (shape) => shape.reduce((product, size) => product * size, 1);
const spelled = (value) => (typeof value === "boolean" ? String(Number(value)) : String(value));
