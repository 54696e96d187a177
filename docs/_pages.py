# SPDX-License-Identifier: Apache-2.0
"""Pages on operators: their docstrings and signatures as Markdown."""

import ast
import inspect
import textwrap
from itertools import groupby, pairwise

import numpy as np
from _figures import shown_of

from anybit.ops import OPERATORS, Operator, RoundingMode
from anybit.ops.documentation import Documentation
from anybit.ops.int_quant import int_quant


def _paragraphs(text: str) -> str:
    """Render indented paragraphs as formulas."""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith("    "):
            blocks.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif block:
            blocks.append(_joined(block))
    return "\n\n".join(blocks)


def _joined(text: str) -> str:
    return " ".join(text.split())


def operator_page(operator: Operator) -> str:
    """Return a page of docs/operators."""
    documentation = operator.documentation
    name = _title(operator)
    versions = [other for other in OPERATORS if other.onnx_name == operator.onnx_name]
    others = [
        f"[version {other.version}]({other.name}.md)" for other in versions if other is not operator
    ]
    parts = [
        "<!-- Generated: change the docstring. -->",
        f"# {name}",
        documentation.summary,
        *([f"There is also {' and '.join(others)}."] if others else []),
        f"```text\n{_signature(operator)}\n```",
        _paragraphs(documentation.body),
        f"![{name}: {shown_of(operator)}](../images/{operator.name}.svg)",
        "## Parameters",
        _table(["parameter", "meaning"], _parameters(operator, documentation)),
        "## Result",
        documentation.returns,
        "## Gradient",
        _gradient(operator),
        "## Example",
        f"```python\n{_imports(operator, documentation.examples)}{documentation.examples}\n```",
        "## In files",
        _names(operator),
        _source(documentation.source),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _source(text: str) -> str:
    link = "see [deviations](../deviations.md)"
    if "see deviations" in text:
        return f"Source: {text.replace('see deviations', link)}"
    return f"Source: {text} S{link[1:]}."


def _title(operator: Operator) -> str:
    versions = [other for other in OPERATORS if other.onnx_name == operator.onnx_name]
    return operator.onnx_name + (f", version {operator.version}" if len(versions) > 1 else "")


def _signature(operator: Operator) -> str:
    """Return the signature on lines of 80 characters, without annotations."""
    words = []
    signature = inspect.signature(operator.function)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + default)
    start = f"anybit.{operator.name}("
    lines = textwrap.wrap(
        ", ".join(words) + ")", 80, initial_indent=start, subsequent_indent=" " * len(start)
    )
    return "\n".join(lines)


def _gradient(operator: Operator) -> str:
    if not operator.differentiable:
        return "None: the result holds integers."
    *names, last = (f"`{name}`" for name in operator.differentiable)
    if operator.is_dequantizer:
        of = f"With respect to {last}; x and its zero-points are integers."
    elif names:
        of = f"With respect to {', '.join(names)} and {last}."
    else:
        of = f"With respect to {last}."
    return of.replace("With respect to", "[With respect to](../gradients.md)")


def _parameters(operator: Operator, documentation: Documentation) -> list[list[str]]:
    """Return one row per input and attribute."""
    inputs = [
        [
            f"`{declared.name}`" + (" (optional)" if declared.optional else ""),
            documentation.arguments[declared.name],
        ]
        for declared in operator.inputs
    ]
    attributes = [
        [f"`{declared.name}`", documentation.arguments[declared.name]]
        for declared in operator.attributes
    ]
    return _merged([*inputs, *attributes])


def _merged(rows: list[list[str]]) -> list[list[str]]:
    """Join the names of consecutive rows that differ in nothing else."""
    return [
        [", ".join(row[0] for row in group), *others]
        for others, group in groupby(rows, lambda row: row[1:])
    ]


def _names(operator: Operator) -> str:
    """Return names, domains, version, number of inputs and attributes as sentences."""
    counts = " or ".join(map(str, sorted({operator.required_inputs, len(operator.inputs)})))
    sentences = [
        f"{_codes([operator.onnx_name, *operator.onnx_aliases])}, version {operator.version}, "
        f"{counts} inputs, domain `{operator.onnx_domain}`."
    ]
    kinds: dict[str, list[str]] = {}
    for declared in operator.attributes:
        kind = {bool: "0 or 1", int: "int", str: "string"}[type(declared.default)]
        name = _codes([declared.onnx_name, *declared.aliases])
        renamed = declared.onnx_name != declared.name
        kinds.setdefault(kind, []).append(name + f" (`{declared.name}` in Python)" * renamed)
    if kinds:
        attributes = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items())
        sentences.append(f"Attributes: {attributes}.")
    return " ".join(sentences)


def _codes(names: list[str]) -> str:
    """Return the first name, then other accepted names."""
    first, *others = (f"`{name}`" for name in names)
    return first + (f" (also {', '.join(others)})" if others else "")


def _imports(operator: Operator, examples: str) -> str:
    needs_numpy = "np." in examples and "import numpy" not in examples
    lines = [">>> import numpy as np\n"] if needs_numpy else []
    return "".join([*lines, f">>> from anybit import {operator.name}\n"])


def _table(headings: list[str], rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(cells)} |" for cells in [headings, *rows])
    return "\n".join([head, "|" + "---|" * len(headings), *body])


def operator_table() -> str:
    """Return a table row per operator, with links from docs/index.md."""
    rows = [
        [
            f"[{_title(operator)}](operators/{operator.name}.md)",
            f"`anybit.{operator.name}`",
            operator.documentation.summary,
        ]
        for operator in OPERATORS
    ]
    return _table(["operator", "function", "what it does"], rows)


# Numbers that distinguish the modes.
_ROUNDED = (2.5, 1.6, 1.1, 0.49999997, -0.3, -1.6, -2.5)


def rounding_table() -> str:
    """Return the table of results of each mode for some numbers."""
    x = np.array(_ROUNDED, np.float32)
    columns = [int_quant(x, 1.0, 0, 8, rounding_mode=mode) for mode in RoundingMode]
    rows = [
        [number, *(f"{column[i]:g}" for column in columns)]
        for i, number in enumerate(map(str, _ROUNDED))
    ]
    return _table(["x", *(mode.value for mode in RoundingMode)], rows)


def rounding_modes() -> str:
    """Return the description of each mode, from the comments of the class."""
    source = textwrap.dedent(inspect.getsource(RoundingMode))
    statements = ast.parse(source).body[0].body
    rows = []
    for name, text in pairwise(statements):
        if isinstance(name, ast.Assign) and isinstance(text, ast.Expr):
            rows.append([f"`{name.targets[0].id}`", text.value.value])
    return _table(["mode", "rounds"], rows)
