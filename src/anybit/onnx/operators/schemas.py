# SPDX-License-Identifier: Apache-2.0
"""ONNX schemas of the operators: documentation, types, defaults and shape inference."""

import atexit
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import onnx
from onnx.defs import OpSchema

from anybit.onnx.operators.dynamic_matmul import make_dynamic_matmul_schema
from anybit.onnx.operators.integer_network import make_integer_network_schema
from anybit.ops import OPERATORS, Attribute, Input, Operator

if TYPE_CHECKING:
    from onnx.shape_inference import InferenceContext  # since onnx 1.19

_REAL_DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)

_lock = threading.Lock()
_ours: set[tuple[str, int, str]] = set()


def register() -> None:
    """Register the operators with `onnx`, for its checker and its shape inference.

    Every operator gets a schema under its name and its legacy names, only in its own domain, which
    `Normalize` uses. `onnx.checker.check_model(model, full_check=True, check_custom_domain=True)`
    then checks attributes and numbers of inputs, and shape inference (also of onnx_ir) does not
    stop at the nodes. An output has the shape of x, and its type unless an attribute selects
    another.

    Calling it again has no effect, and existing schemas of others stay. The schemas are removed
    when the interpreter exits.

    Raises:
        RuntimeError: onnx is older than 1.19, which has no shape inference in Python.
    """
    if not hasattr(OpSchema, "set_type_and_shape_inference_function"):
        raise RuntimeError(f"schemas need onnx 1.19 or newer, got {onnx.__version__}; upgrade onnx")
    with _lock:
        atexit.unregister(_deregister)
        atexit.register(_deregister)
        for operator in OPERATORS:
            for name in (operator.onnx_name, *operator.onnx_aliases):
                key = (name, operator.version, operator.onnx_domain)
                if not _is_registered(*key):
                    schema = make_schema(operator, name)
                    schema.set_type_and_shape_inference_function(_make_inference(operator))
                    onnx.defs.register_schema(schema)
                    _ours.add(key)
        for schema in (make_integer_network_schema(), make_dynamic_matmul_schema()):
            key = (schema.name, schema.since_version, schema.domain)
            if not _is_registered(*key):
                onnx.defs.register_schema(schema)
                _ours.add(key)


def _deregister() -> None:
    """Deregister the schemas: onnx frees them after Python exits, which can crash or hang."""
    with _lock:
        while _ours:
            with contextlib.suppress(onnx.defs.SchemaError):  # already deregistered by others
                onnx.defs.deregister_schema(*_ours.pop())


def _is_registered(name: str, version: int, domain: str) -> bool:
    if not onnx.defs.has(name, version, domain):
        return False
    return onnx.defs.get_schema(name, version, domain).since_version == version


def make_schema(operator: Operator, name: str = "") -> OpSchema:
    """Return the schema under a name (default: the operator's own), without shape inference."""
    name = name or operator.onnx_name
    documented = operator.documentation
    x = operator.inputs[0]
    types = [
        _make_constraint(declared.name, declared.domain.dtypes) for declared in operator.inputs
    ]
    result = x.name
    if operator.result_dtype is not None:
        result = "result"
        types.append(_make_constraint(result, ()))
    return OpSchema(
        name,
        operator.onnx_domain,
        operator.version,
        _describe(operator, name),
        inputs=[_make_input(declared, documented.arguments) for declared in operator.inputs],
        outputs=[OpSchema.FormalParameter("result", _name_variable(result), documented.returns)],
        type_constraints=types,
        attributes=[
            _make_attribute(declared, documented.arguments) for declared in operator.attributes
        ],
    )


def _name_variable(name: str) -> str:
    """Return the type variable of one input: shared ones would require equal types."""
    return f"T_{name}"


def _make_constraint(name: str, dtypes: tuple[str, ...]) -> tuple[str, list[str], str]:
    allowed = [f"tensor({_to_onnx_type(dtype).lower()})" for dtype in dtypes or _REAL_DTYPES]
    return _name_variable(name), allowed, f"The types of {name}."


def _to_onnx_type(dtype: str) -> str:
    """Return ONNX's name of an array-API dtype."""
    return {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())


def _make_input(declared: Input, documented: Mapping[str, str]) -> OpSchema.FormalParameter:
    options = OpSchema.FormalParameterOption
    return OpSchema.FormalParameter(
        declared.name,
        _name_variable(declared.name),
        documented.get(declared.name, ""),
        param_option=options.Optional if declared.optional else options.Single,
    )


def _make_attribute(declared: Attribute, documented: Mapping[str, str]) -> OpSchema.Attribute:
    name, default = declared.onnx_name, declared.default
    value = onnx.helper.make_attribute(name, declared.encode(default))
    return OpSchema.Attribute(name, value, documented.get(declared.name, ""))


def _describe(operator: Operator, name: str) -> str:
    documented = operator.documentation
    legacy = f"Legacy name of {operator.onnx_name}." if name != operator.onnx_name else ""
    source = f"Source: {documented.source}" if documented.source else ""
    return "\n\n".join(part for part in (legacy, documented.description, source) if part)


def _make_inference(operator: Operator) -> Callable[["InferenceContext"], None]:
    def infer(context: "InferenceContext") -> None:
        # An exception would end the inference of the whole model, even in tolerant mode.
        with contextlib.suppress(Exception):
            _infer(operator, context)

    return infer


def _infer(operator: Operator, context: "InferenceContext") -> None:
    result = onnx.TypeProto()
    x = context.get_input_type(0)
    if x is not None and x.HasField("tensor_type"):
        result.CopyFrom(x)
    if operator.result_dtype is not None:
        dtype = operator.result_dtype(_read_attributes(operator, context))
        result.tensor_type.elem_type = onnx.TensorProto.DataType.Value(_to_onnx_type(dtype))
    if result.tensor_type.elem_type:
        context.set_output_type(0, result)


def _read_attributes(operator: Operator, context: "InferenceContext") -> dict[str, Any]:
    """Return the attributes of a node under their Python names.

    Omit references to attributes of the enclosing function: each call sets their values.
    """
    values: dict[str, Any] = {}
    for declared in operator.attributes:
        attribute = context.get_attribute(declared.onnx_name)
        if attribute is None:
            values[declared.name] = declared.default
        elif not attribute.ref_attr_name:
            value = onnx.helper.get_attribute_value(attribute)
            stored = value.decode() if isinstance(value, bytes) else value
            values[declared.name] = declared.decode(stored)
    return values
