# SPDX-License-Identifier: Apache-2.0
"""Small ONNX graphs as SVG text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
import onnx
import onnx_ir as ir
from _layers import Edge, Key, Layout, layout
from _svg import Palette, document, text_width

from anybit.onnx.operators.registry import find_operator

PADDING = 20
HEADING = 34
LINE = 16
BETWEEN_GRAPHS = 56

# Constants of this many elements are lines of the node that reads them; larger ones are boxes.
_MOST_ELEMENTS_OF_A_LINE = 16

_STYLE = """\
.title,.heading{font-weight:600}
.heading{font-size:14px}
path,rect{fill:none;stroke-width:1.25}
.type{stroke-width:5px;paint-order:stroke}
.tensor{stroke-dasharray:4 3}
.ours,.new{stroke-width:2}
"""
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker>'
)


def _rules(colours: Palette) -> str:
    return (
        f".title,.heading{{fill:{colours.ink}}}.paper{{fill:{colours.paper}}}"
        f".type{{stroke:{colours.paper}}}.edge{{stroke:{colours.axis}}}.tip{{fill:{colours.axis}}}"
        f".kept,.tensor,.terminal{{stroke:{colours.axis};fill:{colours.paper}}}"
        f".ours{{stroke:{colours.first};fill:{colours.paper}}}"
        f".new{{stroke:{colours.second};fill:{colours.paper}}}"
    )


@dataclass(frozen=True)
class Box:
    """Text lines of a box, and its kind: terminal, tensor, ours, kept or new."""

    title: str
    lines: tuple[str, ...]
    kind: str

    @property
    def size(self) -> tuple[float, float]:
        widths = [text_width(self.title) * 1.1, *map(text_width, self.lines)]
        return round(max(widths)) + 24, LINE * (1 + len(self.lines)) + 10


@dataclass(frozen=True)
class Picture:
    """A graph as boxes and edges; edges may have a label."""

    heading: str
    boxes: dict[Key, Box]
    edges: dict[Edge, str]


def picture(heading: str, graph: ir.Graph, opset: int, base: ir.Graph | None = None) -> Picture:
    """Return the picture of a graph. Nodes that are not in the base graph are new."""
    kept = {_identity(node) for node in base} if base is not None else None
    boxes: dict[Key, Box] = {}
    edges: dict[Edge, str] = {}
    for value in graph.inputs:
        boxes[value] = Box(value.name or "", _type_lines(value), "terminal")
    for node in graph:
        if node.op_type == "Constant":
            continue
        for value in node.inputs:
            if value is not None and _is_large(value):
                boxes[value] = Box(value.name or "", _type_lines(value), "tensor")
        kind = "ours" if find_operator(node) is not None else "kept"
        if kind == "kept" and kept is not None and _identity(node) not in kept:
            kind = "new"
        boxes[node] = Box(node.op_type, tuple(_lines(node, opset)), kind)
        for value in node.inputs:
            if value is not None and (value.producer() or value) in boxes:
                edges[value.producer() or value, node] = _label(value)
    for value in graph.outputs:
        boxes[value, "output"] = Box(value.name or "", _type_lines(value), "terminal")
        edges[value.producer(), (value, "output")] = ""
    return Picture(heading, boxes, edges)


def _identity(node: ir.Node) -> tuple[str, str | None]:
    return node.op_type, node.outputs[0].name


def _tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        return producer.attributes["value"].as_tensor()
    return value.const_value


def _is_large(value: ir.Value) -> bool:
    tensor = _tensor_of(value)
    return tensor is not None and value.is_initializer() and tensor.size > _MOST_ELEMENTS_OF_A_LINE


def _type_lines(value: ir.Value) -> tuple[str, ...]:
    tensor = value.const_value
    dtype = tensor.dtype if tensor is not None else value.dtype
    if dtype is None:
        return ()
    shape = tensor.shape if tensor is not None else value.shape
    return (f"{_name(dtype)}{'' if shape is None else f' [{_sizes(shape)}]'}",)


def _sizes(shape: ir.Shape) -> str:
    return ", ".join(str(size) if isinstance(size, int) else size.value or "?" for size in shape)


def _name(dtype: ir.DataType) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())


def _label(value: ir.Value) -> str:
    """Return the type of a tensor if it is not the usual one."""
    usual = value.dtype in (None, ir.DataType.FLOAT, ir.DataType.BOOL)
    return "" if usual or value.producer() is None else _name(value.dtype)


def _lines(node: ir.Node, opset: int) -> Iterator[str]:
    """Return the constant inputs of a node, and its attributes other than defaults."""
    names = list(_input_names(node, opset))
    for name, value in zip(names, node.inputs, strict=False):
        tensor = _tensor_of(value) if value is not None else None
        if tensor is None or _is_large(value):
            continue
        kind = "" if tensor.dtype == ir.DataType.FLOAT else f" {_name(tensor.dtype)}"
        if tensor.size == 1:
            yield f"{name} = {_number(tensor.numpy().item())}{kind}"
        else:
            yield f"{name}:{kind} [{_sizes(tensor.shape)}]"
    defaults = _defaults(node, opset)
    for name, attribute in node.attributes.items():
        value = attribute.value
        if name == "to":
            yield f"to {_name(ir.DataType(value))}"
        elif value != defaults.get(name):
            yield f"{name} = {value}"
    for key, text in node.metadata_props.items():
        if key.startswith("anybit."):
            yield f"{key.removeprefix('anybit.')} {_minus(text)}"


def _number(value: float) -> str:
    return _minus(f"{value:g}")


def _minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def _input_names(node: ir.Node, opset: int) -> list[str]:
    operator = find_operator(node)
    if operator is not None:
        return [declared.name for declared in operator.inputs]
    return [declared.name for declared in onnx.defs.get_schema(node.op_type, opset, "").inputs]


def _defaults(node: ir.Node, opset: int) -> dict[str, object]:
    operator = find_operator(node)
    if operator is not None:
        return {attribute.onnx_name: attribute.default for attribute in operator.attributes}
    attributes = onnx.defs.get_schema(node.op_type, opset, "").attributes
    return {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in attributes.items()
        if attribute.default_value.type
    }


def drawing(pictures: Sequence[Picture], title: str, description: str) -> str:
    """Return the pictures side by side."""
    parts = [f"<defs>{_ARROW}</defs>"]
    left, bottom = PADDING, 0.0
    for picture in pictures:
        placed = layout({key: box.size for key, box in picture.boxes.items()}, list(picture.edges))
        width = max(placed.width, text_width(picture.heading) * 1.25)
        parts.append(f'<g transform="translate({left} {PADDING})">')
        parts.append(f'<text class="heading" y="12">{escape(picture.heading)}</text>')
        shift = round((width - placed.width) / 2)
        parts.append(f'<g transform="translate({shift} {HEADING})">')
        parts += [*_edges(picture, placed), *_boxes(picture, placed), "</g>", "</g>"]
        left += round(width) + BETWEEN_GRAPHS
        bottom = max(bottom, placed.height)
    size = (left - BETWEEN_GRAPHS + PADDING, round(bottom) + HEADING + 2 * PADDING)
    return document(size, title, description, _STYLE, _rules, parts)


def _edges(shown: Picture, placed: Layout) -> Iterator[str]:
    for corners in placed.routes.values():
        path = f"M{_at(corners[0])}"
        for index, (x, y) in enumerate(corners[1:], start=1):
            before_x, before_y = corners[index - 1]
            middle = (y + before_y) / 2
            straight = before_x == x or index % 2 == 0
            curve = f"C{_at((before_x, middle))} {_at((x, middle))} {_at((x, y))}"
            path += f"L{_at((x, y))}" if straight else curve
        yield f'<path class="edge" marker-end="url(#arrow)" d="{path}"/>'
    labels = {placed.routes[edge][0]: label for edge, label in shown.edges.items() if label}
    for (x, y), label in labels.items():
        yield (
            f'<text class="type" x="{_round(x + 7)}" y="{_round(y + 14)}">{escape(label)}</text>'
        )


def _boxes(shown: Picture, placed: Layout) -> Iterator[str]:
    for key, box in shown.boxes.items():
        (x, y), (width, height) = placed.places[key], box.size
        radius = height / 2 if box.kind == "terminal" else 2 if box.kind == "tensor" else 7
        yield (
            f'<rect class="{box.kind}" x="{_round(x - width / 2)}" y="{_round(y)}" '
            f'width="{_round(width)}" height="{_round(height)}" rx="{_round(radius)}"/>'
        )
        for index, line in enumerate((box.title, *box.lines)):
            kind = ' class="title"' if index == 0 else ""
            down = y + LINE * (index + 1) + 1
            yield (
                f'<text{kind} x="{_round(x)}" y="{_round(down)}" text-anchor="middle">'
                f"{escape(line)}</text>"
            )


def _at(point: tuple[float, float]) -> str:
    return f"{_round(point[0])} {_round(point[1])}"


def _round(number: float) -> str:
    return f"{np.round(number, 1):g}"
