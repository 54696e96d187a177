# SPDX-License-Identifier: Apache-2.0
"""Functions of C that layers of equal form share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.compiler.backends.c.layers import Layer
from anybit.compiler.backends.c.layout import format_comment, indent_code
from anybit.compiler.backends.c.literals import parse_integer
from anybit.compiler.backends.c.parameters import (
    Argument,
    Place,
    fill_arguments,
    fill_places,
    find_arguments,
    hide_arguments,
)
from anybit.compiler.backends.c.types import CType, find_field_type

_WIDTH = 98
_POINTER = 4


@dataclass(frozen=True)
class LayerCode:
    """The code of a layer in a file.

    Attributes:
        text: Its definitions.
        call: A call of its function, up to the first argument.
    """

    text: str
    call: str


def define_layers(layers: Sequence[Layer], *, shares: bool) -> list[LayerCode]:
    """Return the code of layers, in their order.

    Args:
        layers: The layers.
        shares: Whether layers whose functions differ only in numbers and arrays share one. What
            differs becomes fields of a struct, and each layer has such a struct.
    """
    forms: dict[str, list[Layer]] = {}
    for layer in layers:
        key = hide_arguments(f"{layer.helper}{layer.text}") if shares else layer.name
        forms.setdefault(key, []).append(layer)
    counts: Counter[str] = Counter()
    codes: dict[str, LayerCode] = {}
    for members in forms.values():
        if len(members) == 1:
            codes[members[0].name] = _define_alone(members[0])
            continue
        form = members[0].form.function
        counts[form] += 1
        name = f"{form}_{counts[form]}" if counts[form] > 1 else form
        arguments = [find_arguments(f"{layer.helper}{layer.text}") for layer in members]
        differing = [
            field for field in arguments[0] if len({values[field].text for values in arguments}) > 1
        ]
        if differing:
            codes.update(_define_shared(name, members, arguments, differing))
        else:
            codes.update(_define_once(name, members))
    return [codes[layer.name] for layer in layers]


def _define_alone(layer: Layer) -> LayerCode:
    helper, text = (
        indent_code(fill_places(fill_arguments(part), {Place.NAME: layer.name}))
        for part in (layer.helper, layer.text)
    )
    return LayerCode(_join(helper, f"{_comment(layer)}\n{text}"), f"{layer.name}(")


def _define_once(name: str, layers: Sequence[Layer]) -> dict[str, LayerCode]:
    """Return the code of layers whose functions are equal."""
    comment = "\n".join(layer.comment for layer in layers)
    first = _define_alone(replace(layers[0], name=name, comment=comment))
    return {layer.name: LayerCode("", first.call) for layer in layers} | {layers[0].name: first}


def _define_shared(
    name: str,
    layers: Sequence[Layer],
    arguments: Sequence[Mapping[str, Argument]],
    differing: Sequence[str],
) -> dict[str, LayerCode]:
    """Return the code of layers that share a function; that of the first has its definition."""
    types = {field: _find_type([values[field] for values in arguments]) for field in differing}
    order = sorted(types, key=lambda field: -_measure(types[field]))
    fields = [f"    {_declare(types[field], field)};" for field in order]
    struct = "\n".join([f"struct {name}_layer {{", *fields, "};"])
    helper, text = (fill_arguments(part, order) for part in (layers[0].helper, layers[0].text))
    layer = f"const struct {name}_layer *layer, "
    reads = "layer->" in helper
    helper = fill_places(helper, {Place.NAME: name, Place.PARAMETER: layer if reads else ""})
    places = {
        Place.NAME: name,
        Place.PARAMETER: f"const struct {name}_layer *in_flash, ",
        Place.START: f"    READ_LAYER({name}_layer, in_flash);\n",
        Place.ARGUMENT: "layer, " if reads else "",
    }
    helper, text = (indent_code(part) for part in (helper, fill_places(text, places)))
    text = f"{format_comment([layers[0].form.purpose + '.'])}\n{text}"
    definition = _join(struct, _join(helper, text))
    codes = {}
    for member, values in zip(layers, arguments, strict=True):
        own = _initialize(name, member, {field: values[field].text for field in order})
        codes[member.name] = LayerCode(own, f"{name}(&{member.name}, ")
    first = codes[layers[0].name]
    codes[layers[0].name] = LayerCode(_join(definition, first.text), first.call)
    return codes


def _comment(layer: Layer) -> str:
    return format_comment(layer.comment.splitlines())


def _join(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first else second


def _find_type(values: Sequence[Argument]) -> str:
    if values[0].ctype:
        return values[0].ctype
    numbers = [parse_integer(value.text) for value in values]
    return find_field_type(min(numbers), max(numbers)).value


def _measure(ctype: str) -> int:
    """Return the size of a type where pointers have 32 bits."""
    return _POINTER if "*" in ctype else CType(ctype).size


def _declare(ctype: str, name: str) -> str:
    return f"{ctype}{name}" if ctype.endswith("*") else f"{ctype} {name}"


def _initialize(function: str, layer: Layer, values: Mapping[str, str]) -> str:
    """Return the struct of a layer."""
    lines, line = [], "   "
    for field, value in values.items():
        text = f" {value}," if f"_{field}" in value else f" /* {field} */ {value},"
        if len(line) + len(text) > _WIDTH:
            lines.append(line)
            line = "   "
        line += text
    head = f"static const struct {function}_layer {layer.name} IN_FLASH = {{"
    return "\n".join([_comment(layer), head, *lines, line, "};"])
