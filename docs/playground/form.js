// SPDX-License-Identifier: Apache-2.0
// The form: its fields follow from the signature of an operator.

// What stands in the fields first, by what an input is for.
const USUAL = { scale: "0.5", "scale of the input": "0.125", "zero-point": "0", "bit-width": "3",
  "bit-width of the input": "8", "exponent bit-width": "2", "mantissa bit-width": "1",
  "exponent bias": "1" };
const FORMAT = ["exponent bit-width", "mantissa bit-width", "exponent bias", "largest value"];

/** An element with properties and children. */
function made(name, properties = {}, ...children) {
  const { data, ...others } = properties;
  const result = Object.assign(document.createElement(name), others);
  result.append(...children);
  return result;
}

function choice(name, values, value) {
  const options = values.map((each) => made("option", { value: each, textContent: each }));
  const select = made("select", { name }, ...options);
  // A link, or another operator's form, may say what is not among them: the first stays.
  if (values.includes(value)) select.value = value;
  return select;
}

function field(name, control, says) {
  control.title = says;
  return made("label", {}, made("span", { textContent: name }), control);
}

function entry(name, value, placeholder = "") {
  return made("input", { name, value, placeholder, autocomplete: "off", spellcheck: false });
}

/** The fields of an operator, filled from what is given by name, and else as usual. */
function fieldsOf(operator, given) {
  const [x, ...parameters] = operator.inputs;
  const filled = (each, usual) => (given.has(each) ? given.get(each) : usual);
  const fields = [field(`type of ${x.name}`, choice("type", x.types, given.get("type")), x.says)];
  if (FORMAT.every((role) => parameters.some((each) => each.role === role))) {
    const names = ["of these fields", ...Object.keys(REGISTRY.formats)];
    fields.push(field("format", choice("format", names), "fills in the fields of a named format"));
  }
  for (const each of parameters) {
    const usual = each.optional ? "" : USUAL[each.role] ?? "1";
    const control = entry(each.name, filled(each.name, usual), each.optional ? "not given" : "");
    fields.push(field(each.name, control, each.says || each.domain));
  }
  const flags = ({ default: usual }) => typeof usual === "boolean";
  for (const each of [...operator.attributes].sort((a, b) => flags(a) - flags(b))) {
    const value = filled(each.name, String(each.default));
    fields.push(field(each.name, controlOf(each, value), each.says));
  }
  return fields;
}

function controlOf(attribute, value) {
  if (typeof attribute.default === "boolean")
    return made("input", { type: "checkbox", name: attribute.name, checked: value === "true" });
  const modes = Object.keys(REGISTRY.modes);
  if (attribute.mode) return choice(attribute.name, modes, modes.includes(value) ? value : attribute.default);
  return entry(attribute.name, value);
}

/** Fills in a named format. */
function fillFormat(form, operator, name) {
  const values = REGISTRY.formats[name];
  if (!values) return;
  FORMAT.forEach((role, at) => {
    const input = operator.inputs.find((each) => each.role === role);
    form.elements[input.name].value = String(values[at]);
  });
}

/** A number as people and Python write it; refuses other text. */
function numberIn(name, text) {
  const words = { nan: NaN, inf: Infinity, "+inf": Infinity, "-inf": -Infinity };
  const plain = text.trim().toLowerCase();
  if (Object.hasOwn(words, plain)) return words[plain];
  const power = /^([+-]?\d+)\s*(?:\^|\*\*)\s*([+-]?\d+)$/.exec(plain);
  const number = power ? Number(power[1]) ** Number(power[2]) : Number(plain);
  if (plain === "" || Number.isNaN(number))
    throw new Refused(`${name} must be a number, such as 0.25, 1e-3, 2^-4 or inf, got '${text}'`);
  return number;
}

/** What the form says: {operator, type, parameters, attributes}; refuses what is not a number. */
function callIn(form, operator) {
  const parameters = {};
  for (const { name, optional } of operator.inputs.slice(1)) {
    const text = form.elements[name].value;
    if (!optional || text.trim() !== "") parameters[name] = numberIn(name, text);
  }
  const attributes = {};
  for (const { name, default: usual } of operator.attributes) {
    const control = form.elements[name];
    attributes[name] = typeof usual === "boolean" ? control.checked : control.value;
  }
  return { operator, xType: form.elements.type.value, parameters, attributes };
}
