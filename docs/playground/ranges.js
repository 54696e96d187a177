// SPDX-License-Identifier: Apache-2.0
// Which codes a quantizer of a model gives, as text: "-8..7", "-1, 1", "float8_e4m3 to 448".

/** Those of an operator; empty where they are not known or differ. */
function codesOfOperator(operator, byRole, attributes) {
  if (operator.codes === "integers") return integersText(byRole("bit-width"), attributes);
  if (operator.codes === "floats") return attributes.signed === false ? "" : floatsText(byRole);
  return operator.codes;
}

/** The one whole number that a parameter has. */
function single(parameter) {
  const { smallest, largest } = parameter || { smallest: null };
  return smallest !== null && smallest === largest && Number.isInteger(smallest) ? smallest : undefined;
}

function integersText(parameter, { signed, narrow }) {
  const bits = single(parameter);
  if (!(bits >= 1 && bits <= 32)) return "";
  const [half, less] = [2 ** (bits - 1), narrow ? 1 : 0];
  return signed ? `${less - half}..${half - 1}` : `0..${2 * half - 1 - less}`;
}

function floatsText(byRole) {
  const [e, m, bias] = FORMAT.slice(0, 3).map((role) => single(byRole(role)));
  if (!(e >= 1 && e <= 64 && m >= 0 && m <= 52) || bias === undefined) return "";
  const given = byRole(FORMAT[3]) || { smallest: Infinity, largest: Infinity };
  const largest = Math.min((2 - 2 ** -m) * 2 ** (2 ** e - 1 - bias), given.largest);
  const steps = largest * 2 ** (m - exponentOf(largest));
  const usable = Number.isFinite(largest) && largest >= 2 ** (1 - bias) && Number.isInteger(steps);
  if (given.smallest !== given.largest || !usable) return "";
  const name = `float${1 + e + m}_e${e}m${m}${bias === 2 ** (e - 1) - 1 ? "" : `b${bias}`}`;
  return `${name} to ${general(largest)}`;
}

/** Six digits, as Python writes them. */
function general(number) {
  const [digits, exponent] = number.toExponential(5).split("e").map(Number);
  if (exponent >= -4 && exponent < 6) return String(Number(number.toPrecision(6)));
  const power = String(Math.abs(exponent)).padStart(2, "0");
  return `${digits}e${exponent < 0 ? "-" : "+"}${power}`;
}
