# SPDX-License-Identifier: Apache-2.0
"""`Operator`: an operator's declaration, read once from a Python signature.

An operator is a function whose positional parameters are its ONNX inputs and whose keyword-only
parameters are its ONNX attributes. The annotations define the domain and the role of each input
(`Scale`, `BitWidth`, ...), the docstring is the specification, and the body is the readable
reference, written for any array-API library. The decorator `define_operator` turns it into the
public function.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np

from anybit._native import get_kernel
from anybit.ops import arrays
from anybit.ops.attribute import Attribute
from anybit.ops.documentation import Documentation, parse_documentation
from anybit.ops.domain import Domain, Role
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call, Grid
from anybit.ops.remark import Remark

P = ParamSpec("P")
R = TypeVar("R")
ResultDtype = Callable[[Mapping[str, Any]], str]
GridOf = Callable[[Call], Grid | None]
CallOf = Callable[[Grid], Call | None]
RemarksOn = Callable[[Call], Iterator[Remark]]


@dataclass(frozen=True)
class Input:
    """One ONNX input."""

    name: str
    domain: Domain
    role: Role
    optional: bool


@dataclass(frozen=True)
class Operator:
    """An operator: the public `function`, its `reference`, and its names in ONNX.

    `function` passes NumPy arrays to the native kernel. `reference` evaluates the readable body for
    any array-API array, including NumPy's; both take the same arguments. `partials` takes them,
    too, and returns the partial derivatives by input, for the inputs in `differentiable`.
    `result_dtype` returns the dtype of the result for some attributes; without it the result has
    that of x. `place` reshapes a parameter so it broadcasts to x, or refuses it, considering shapes
    only.

    `grid` returns the values of a call, and `from_grid` a call with the values of a grid; None if
    there is none. `remarks` yields valid but unusual properties of a call.

    `block_axis` is the attribute with the axis along which an operator reduces blocks; operators
    without one are elementwise.
    """

    name: str
    onnx_name: str
    onnx_domain: str
    onnx_aliases: tuple[str, ...]
    version: int
    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    function: Callable[..., Any] = field(repr=False, compare=False)
    reference: Callable[..., Any] = field(repr=False, compare=False)
    partials: Callable[..., dict[str, Any]] = field(repr=False, compare=False)
    differentiable: tuple[str, ...]
    place: arrays.Place = field(repr=False, compare=False)
    result_dtype: ResultDtype | None = field(repr=False, compare=False)
    grid: GridOf | None = field(repr=False, compare=False)
    from_grid: CallOf | None = field(repr=False, compare=False)
    remarks: RemarksOn | None = field(repr=False, compare=False)
    block_axis: str | None = None

    @functools.cached_property
    def required_inputs(self) -> int:
        """Return the number of leading inputs without a default."""
        return sum(not declared.optional for declared in self.inputs)

    def name_inputs(self, inputs: Iterable[Any]) -> dict[str, Any]:
        """Return inputs by name; missing ones at the end are left out."""
        return dict(zip((declared.name for declared in self.inputs), inputs, strict=False))

    def broadcast_shapes(
        self, inputs: Iterable[Any], attributes: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape in which each input broadcasts to x, by name of the input."""
        complete = self.complete(attributes)
        present = {
            name: value for name, value in self.name_inputs(inputs).items() if value is not None
        }
        x_name = self.inputs[0].name
        x = present[x_name]
        placed = {
            name: value if name == x_name else self.place(value, x, name, complete)
            for name, value in present.items()
        }
        return {name: tuple(value.shape) for name, value in placed.items()}

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes, completed by their defaults."""
        return {item.name: item.default for item in self.attributes} | dict(attributes)

    def count_axis_from_end(self, attributes: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """Return attributes that stay valid if x gets further axes at the front."""
        values = dict(attributes)
        if self.block_axis is not None and values[self.block_axis] >= 0:
            values[self.block_axis] -= rank
        return values

    @functools.cached_property
    def documentation(self) -> Documentation:
        """Return the docstring in parts."""
        return parse_documentation(inspect.getdoc(self.function) or "")

    @property
    def is_dequantizer(self) -> bool:
        """Return whether x holds codes: values are float32(x - zero-point) * scale, as in ONNX."""
        return self.inputs[0].domain.integer

    def get_code_dtype(self, attributes: Mapping[str, Any]) -> str | None:
        """Return the dtype of the codes that the operator returns or reads, if any.

        A dequantizer reads the first of several dtypes of one width.
        """
        if self.is_dequantizer:
            return self.inputs[0].domain.dtypes[0]
        return None if self.result_dtype is None else self.result_dtype(attributes)

    @property
    def broadcasts(self) -> bool:
        """Return whether parameters follow NumPy's broadcasting, not a rule of their own."""
        return self.place is arrays.make_broadcastable


def define_operator(
    onnx_name: str,
    *,
    domain: str = "qonnx.custom_op.general",
    version: int = 1,
    aliases: tuple[str, ...] = (),
    attribute_names: Mapping[str, tuple[str, ...]] | None = None,
    place: arrays.Place = arrays.make_broadcastable,
    result_dtype: ResultDtype | None = None,
    gradient: Gradient | None = None,
    grid: GridOf | None = None,
    from_grid: CallOf | None = None,
    remarks: RemarksOn | None = None,
    block_axis: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn a reference into the public function of the same signature.

    `attribute_names` holds the ONNX name and further spellings of attributes that differ in ONNX
    files. `place` reshapes a parameter so it broadcasts to x. An operator with a `block_axis`
    reduces blocks along the axis of that attribute.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        declared = _Declared(
            _list_inputs(body), _list_attributes(body, attribute_names or {}), place
        )
        function, reference = _make_callables(body, declared)
        derivative = gradient or Gradient((), lambda *_, **__: ())
        function.operator = Operator(  # type: ignore[attr-defined]
            name=body.__name__,
            onnx_name=onnx_name,
            onnx_domain=domain,
            onnx_aliases=aliases,
            version=version,
            inputs=declared.inputs,
            attributes=declared.attributes,
            function=function,
            reference=reference,
            partials=_make_partials(body, declared, derivative),
            differentiable=derivative.of,
            place=place,
            result_dtype=result_dtype,
            grid=grid,
            from_grid=from_grid,
            remarks=remarks,
            block_axis=block_axis,
        )
        return function

    return decorate


@dataclass(frozen=True)
class _Declared:
    """The declared arguments of a call."""

    inputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    place: arrays.Place

    def convert_arguments(
        self, arguments: Mapping[str, Any]
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return x as passed, all checked inputs in their compute types, and the attributes."""
        attributes = {
            attribute.name: attribute.parse(arguments[attribute.name])
            for attribute in self.attributes
        }
        values = [arguments[value.name] for value in self.inputs]
        x, first = arrays.convert_to_array(values[0]), self.inputs[0]
        operands = [arrays.widen(x, first.domain, first.name)]
        for declared, value in zip(self.inputs[1:], values[1:], strict=True):
            if value is not None:
                value = arrays.convert_parameter(value, declared.domain, x, declared.name)
                value = self.place(value, x, declared.name, attributes)
            operands.append(value)
        return x, operands, attributes


def _make_callables(
    body: Callable[P, R], declared: _Declared
) -> tuple[Callable[P, R], Callable[P, R]]:
    """Return the public function, and the reference for arrays of other libraries."""
    signature = inspect.signature(body)
    native = get_kernel(body.__name__)
    ndarray = np.ndarray  # looked up once: a call on a small array takes a microsecond

    def reference(*arguments: P.args, **keywords: P.kwargs) -> R:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        out = bound.arguments.pop("out")
        with np.errstate(all="ignore"):  # 0/0 and overflow have defined results
            x, operands, attributes = declared.convert_arguments(bound.arguments)
            return typing.cast(R, arrays.deliver(body(*operands, **attributes), x, out))

    @functools.wraps(body)
    def function(*arguments: P.args, **keywords: P.kwargs) -> R:
        x = arguments[0] if arguments else keywords.get(declared.inputs[0].name)
        if type(x) is ndarray or not arrays.is_foreign(x):
            return native(*arguments, **keywords)  # type: ignore[no-any-return]
        return reference(*arguments, **keywords)

    return function, reference


def _make_partials(
    body: Callable[..., Any],
    declared: _Declared,
    gradient: Gradient,
) -> Callable[..., dict[str, Any]]:
    """Return a function for the derivatives by input, with the arguments of the public function."""
    signature = inspect.signature(body)

    def partials(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        del bound.arguments["out"]
        with np.errstate(all="ignore"):
            _, operands, attributes = declared.convert_arguments(bound.arguments)
            derivatives = gradient.partials(*operands, **attributes)
        return dict(zip(gradient.of, derivatives, strict=True))

    return partials


def _list_inputs(body: Callable[..., Any]) -> tuple[Input, ...]:
    hints = typing.get_type_hints(body, include_extras=True)
    return tuple(
        Input(name, *_parse_annotation(hints[name]), parameter.default is not parameter.empty)
        for name, parameter in inspect.signature(body).parameters.items()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    )


def _list_attributes(
    body: Callable[..., Any], names: Mapping[str, tuple[str, ...]]
) -> tuple[Attribute, ...]:
    def get_spellings(name: str) -> tuple[str, tuple[str, ...]]:
        onnx_name, *others = names.get(name, (name,))
        return onnx_name, tuple(others)

    return tuple(
        Attribute(name, parameter.default, *get_spellings(name))
        for name, parameter in inspect.signature(body).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "out"
    )


def _parse_annotation(hint: Any) -> tuple[Domain, Role]:
    """Return the domain and the role of an annotation: `Scale` or `Scale | None`."""
    for part in (hint, *typing.get_args(hint)):
        metadata = getattr(part, "__metadata__", ())
        for item in metadata:
            if isinstance(item, Domain):
                roles = [entry for entry in metadata if isinstance(entry, Role)]
                return item, roles[0] if roles else Role.DATA
    raise TypeError(f"annotate the input with its domain, got {hint!r}")
