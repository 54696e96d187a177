# SPDX-License-Identifier: Apache-2.0
"""Translation of the operators by PyTorch's exporter."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from anybit.onnx.operators.schemas import make_schema
from anybit.ops import OPERATORS, Attribute, Input, Operator, RoundingMode


def export_options() -> dict[str, Any]:
    """Return keyword arguments for `torch.onnx.export(..., dynamo=True, **export_options())`.

    Every call of an operator becomes one node in the operator's own domain, with all attributes
    written out, and the model imports that domain with the operator's version. Integer parameters
    become float32 (float64 for a float64 x), as in QONNX's files, unless their type is fixed.
    Nothing is registered globally.

    `trunc` and `trunc_v1` are two versions of one ONNX operator. A file can declare only one:
    `anybit.load` rejects a file with both and names the node.
    """
    translations: dict[Any, Callable[..., Any]] = {
        get_overload(operator): _make_translation(operator) for operator in OPERATORS
    }
    # PyTorch's own translation casts float32 to float32.
    return {"custom_translation_table": translations | {torch.ops.aten.isinf.default: _is_inf}}


def get_overload(operator: Operator) -> Any:
    """Return the operator in `torch.ops.anybit`."""
    return getattr(torch.ops.anybit, operator.name).default


def _make_translation(operator: Operator) -> Callable[..., Any]:
    opset = onnxscript.values.Opset(operator.onnx_domain, operator.version)
    # Without a schema, onnxscript would look for one in onnx's registry.
    node = onnxscript.values.Op(opset, operator.onnx_name, make_schema(operator))
    names = [declared.name for declared in operator.inputs]

    def translate(*inputs: Any, **keywords: Any) -> Any:
        by_name = dict(zip(names, inputs, strict=False))
        by_name |= {name: keywords.pop(name) for name in names if name in keywords}
        x = by_name[names[0]]
        values = [x]
        for declared in operator.inputs[1:]:
            value = by_name.get(declared.name)
            values.append(None if value is None else _convert_parameter(value, declared, x))
        while values[-1] is None:
            values.pop()
        attributes = {
            attribute.onnx_name: _encode_attribute(
                attribute, keywords.get(attribute.name, attribute.default)
            )
            for attribute in operator.attributes
        }
        return node(*values, **attributes)

    return translate


def _is_inf(x: Any) -> Any:
    """Translate `isinf`, whose operator takes float32 and float64."""
    is_wide = x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    wide: Any = x if is_wide else onnxscript.opset18.Cast(x, to=ir.DataType.FLOAT)
    return onnxscript.opset18.IsInf(wide)


def _convert_parameter(value: Any, declared: Input, x: Any) -> Any:
    """Convert a parameter to its type in files."""
    if declared.domain.dtypes or not _is_integer(value.dtype):
        return value
    double = x.dtype == ir.DataType.DOUBLE and not declared.domain.integer
    return onnxscript.opset18.Cast(value, to=ir.DataType.DOUBLE if double else ir.DataType.FLOAT)


def _is_integer(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.name.startswith(("INT", "UINT", "BOOL"))


def _encode_attribute(attribute: Attribute, value: bool | int | str) -> int | str:
    return attribute.encode(RoundingMode.parse(str(value)).value if attribute.is_mode else value)
