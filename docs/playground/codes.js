// SPDX-License-Identifier: Apache-2.0
// Which code stands for a value: told from what the inputs are for, whatever the operator.

/** The parameter of a role, a number; undefined where the operator has none or it is not given. */
function byRole(call, role) {
  const input = call.operator.inputs.find((each) => each.role === role);
  return input && call.parameters[input.name];
}

/** The code of a result and its bits, as text: {code, bits}; null where no code stands for it. */
function codeOf(call, value) {
  if (!Number.isFinite(value)) return null;
  const integral = call.type.includes("int");
  if (integral) return integerCode(value, 8 * SIZES[call.type]);
  const scaled = value / byRole(call, "scale");
  if (!Number.isFinite(scaled)) return null;
  const mantissa = byRole(call, "mantissa bit-width");
  if (mantissa !== undefined) {
    const [exponent, bias] = ["exponent bit-width", "exponent bias"].map((each) => byRole(call, each));
    return floatCode(scaled, exponent, mantissa, bias);
  }
  const bitwidth = byRole(call, "bit-width");
  return integerCode(scaled + zeroPoint(call), bitwidth);
}

/** The zero-point of the result: it follows the bits that an operator drops with its scale. */
function zeroPoint(call) {
  const given = byRole(call, "zero-point") || 0;
  const inner = byRole(call, "scale of the input");
  return inner === undefined ? given : given * (inner / byRole(call, "scale"));
}

function integerCode(value, bitwidth) {
  const code = Math.round(value);
  if (Math.abs(code - value) > 1e-3 * Math.max(1, Math.abs(value) / 1000)) return null;
  const fits = bitwidth <= 64 && code >= -(2 ** (bitwidth - 1)) && code < 2 ** bitwidth;
  if (!fits) return { code: String(code), bits: "" };
  const bits = BigInt.asUintN(bitwidth, BigInt(code)).toString(2).padStart(bitwidth, "0");
  return { code: String(code), bits };
}

/** Sign, exponent and mantissa of a number of a format without infinities. */
function floatCode(value, exponentBits, mantissaBits, bias) {
  if (1 + exponentBits + mantissaBits > 64) return null;
  const magnitude = Math.abs(value);
  const lowest = 1 - bias;
  const exponent = Math.max(exponentOf(magnitude), lowest);
  const steps = magnitude === 0 ? 0 : magnitude * 2 ** (mantissaBits - exponent);
  const whole = Math.round(steps);
  if (!(Math.abs(steps - whole) <= 1e-3)) return null; // nor for what is beyond all numbers
  // One step above the subnormal numbers the exponent's code counts from 1.
  const code = BigInt(whole) + BigInt(exponent - lowest) * 2n ** BigInt(mantissaBits);
  const digits = code.toString(2).padStart(exponentBits + mantissaBits, "0");
  if (digits.length > exponentBits + mantissaBits) return null;
  const sign = value < 0 || Object.is(value, -0) ? "1" : "0";
  const parts = [sign, digits.slice(0, exponentBits), digits.slice(exponentBits)];
  return { code: "0x" + BigInt("0b" + parts.join("")).toString(16), bits: parts.join(" ").trim() };
}

/** That of the binade: the logarithm may be off by one at its ends. */
function exponentOf(magnitude) {
  if (magnitude === 0) return -Infinity;
  let exponent = Math.floor(Math.log2(magnitude));
  if (2 ** exponent > magnitude) exponent -= 1;
  if (2 ** (exponent + 1) <= magnitude) exponent += 1;
  return exponent;
}

/** The bytes of a number as one hexadecimal word. */
function hexadecimal(bytes) {
  return "0x" + [...bytes].reverse().map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
