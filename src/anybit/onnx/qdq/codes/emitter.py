# SPDX-License-Identifier: Apache-2.0
"""Insertion of the float nodes that compute the codes of one operator."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_producer
from anybit.onnx.graph.shapes import get_named_sizes
from anybit.onnx.quantizers.grids import Inexpressible

CODES = (np.uint8, np.int8)
CODE_TYPES = (ir.DataType.UINT8, ir.DataType.INT8)
ONE = np.ones((), np.float32)
CHANNELS_LAST = "its channels come last: quantize a model with channels first"

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class CodeScaling:
    """The scale, float32, and the zero-point of a tensor of codes."""

    scale: Array
    zeropt: Array

    @property
    def dtype(self) -> ir.DataType:
        """The type of the codes."""
        return ir.DataType.from_numpy(self.zeropt.dtype)

    def key(self) -> tuple[bytes, int, np.dtype[np.generic]]:
        """Return a key that equal scalings share."""
        return self.scale.tobytes(), int(self.zeropt), self.zeropt.dtype


@dataclass(frozen=True)
class FileCodes:
    """A tensor of codes of the file: its name and its zero-point."""

    name: str
    zeropt: Array

    def encode(self, integers: Array) -> Array:
        """Return the codes of float32 integers, code - zero-point."""
        return (integers + self.zeropt.astype(np.float32)).astype(self.zeropt.dtype)


@dataclass(frozen=True)
class CodeRead:
    """An input of codes of an operator, and where the float nodes read it.

    Attributes:
        place: Its place in the operator.
        reader: Index of the first node of the chain that reads its floats.
        reader_place: The place there.
        scaling: The scale and zero-point of the floats.
    """

    place: int
    reader: int
    reader_place: int
    scaling: CodeScaling


@dataclass(frozen=True, eq=False)
class Emitted:
    """The float nodes of an operator.

    Attributes:
        result: The value in place of its output.
        scaling: The parameters of the QuantizeLinear that returns it; None for floats.
        error: Bound on the rounding of float32 sums, per output channel; None if none can change a
            code.
        largest_sum: Bound on the partial sums of a product; None if it is unknown.
        saturates: Whether kernels for older CPUs may saturate sums of two products.
    """

    result: ir.Value
    scaling: CodeScaling | None
    error: Array | None = None
    largest_sum: int | None = 0
    saturates: bool = False


class FloatCopies:
    """The floats of tensors of codes, by scale and zero-point: equal ones are shared."""

    def __init__(self, model: ir.Model) -> None:
        self.editor = Editor(model)
        self._floats: dict[object, ir.Value] = {}
        self._integers: dict[ir.Value, FileCodes] = {}

    def record(self, codes: ir.Value, scaling: CodeScaling, floats: ir.Value) -> None:
        """Record the floats of codes."""
        self._floats[codes, scaling.key()] = floats
        if scaling.scale == 1:
            self._integers[floats] = FileCodes(str(codes.name), scaling.zeropt)

    def list_integers(self) -> dict[str, FileCodes]:
        """Return the codes with a scale of 1 by the names of their floats."""
        return {str(floats.name): codes for floats, codes in self._integers.items()}

    def read(self, codes: ir.Value, scaling: CodeScaling, before: ir.Node) -> ir.Value:
        """Return the floats of codes; they are inserted before a node if there are none."""
        key = codes, scaling.key()
        if key not in self._floats:
            floats = self.convert("DequantizeLinear", codes, scaling, before)
            self.record(codes, scaling, floats)
        return self._floats[key]

    def convert(
        self, kind: str, value: ir.Value, scaling: CodeScaling, before: ir.Node, name: str = ""
    ) -> ir.Value:
        """Insert a QuantizeLinear or a DequantizeLinear of a value."""
        name = name or f"{value.name}_floats"
        scale = self.editor.share_parameter(name, "scale", scaling.scale, _FLOAT)
        zeropt = self.editor.share_parameter(name, "zero_point", scaling.zeropt, scaling.dtype)
        dtype = scaling.dtype if kind == "QuantizeLinear" else _FLOAT
        return self.editor.insert(
            before, kind, [value, scale, zeropt], name, like=value, dtype=dtype
        )


class Emitter:
    """The float nodes in place of one operator.

    Attributes:
        node: The operator.
        model: Its model.
        chain: The inserted nodes from its floats to its result.
        splits_sums: Whether sums beyond 2^24 are added in parts, in float64.
    """

    def __init__(
        self, node: ir.Node, model: ir.Model, copies: FloatCopies, infer_shapes: InPlacePass
    ) -> None:
        self.node = node
        self.model = model
        self._infer_shapes = infer_shapes
        self.chain: list[ir.Node] = []
        self.splits_sums = False
        self._copies = copies
        self._read: list[tuple[int, ir.Value, CodeScaling]] = []

    @property
    def name(self) -> str:
        """The name of the result of the operator."""
        return str(self.node.outputs[0].name)

    @property
    def reads(self) -> tuple[CodeRead, ...]:
        """The inputs of codes that the chain reads as floats."""
        first: dict[ir.Value | None, tuple[int, int]] = {}
        for index, node in enumerate(self.chain):
            for place, value in enumerate(node.inputs):
                first.setdefault(value, (index, place))
        return tuple(CodeRead(place, *first[value], own) for place, value, own in self._read)

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.model.graph.opset_imports.get("", 1)

    def get_value(self, place: int, role: str) -> ir.Value:
        """Return an input of the operator.

        Raises:
            Inexpressible: It has none.
        """
        value = get_input(self.node, place)
        if value is None:
            raise Inexpressible(f"it has no {role}")
        return value

    def get_sizes(self, place: int) -> tuple[int | str | None, ...] | None:
        """Return the proven sizes of an input, with the names of dynamic sizes.

        ONNX infers no shapes after some operators of ONNX Runtime, but after the nodes in their
        place.
        """
        value = self.get_value(place, "operand")
        sizes = get_named_sizes(value, self.model)
        if sizes is None:
            self._infer_shapes(self.model)
            sizes = get_named_sizes(value, self.model)
        return sizes

    def read_constant(self, place: int, role: str) -> Array:
        """Return a constant input of the operator.

        Raises:
            Inexpressible: It is missing, or computed at run time.
        """
        value = self.get_value(place, role)
        if not is_constant(value):
            raise Inexpressible(f"the {role} is computed at run time: quantize with a static one")
        return read_array(value)

    def read_scale(self, place: int, role: str) -> Array:
        """Return a constant scale, positive float32.

        Raises:
            Inexpressible: It is another one.
        """
        scale = self.read_constant(place, role)
        if scale.dtype != np.float32:
            raise Inexpressible(f"the {role} is {scale.dtype}, not float32")
        if not np.all((scale > 0) & np.isfinite(scale)):
            raise Inexpressible(f"the {role} {scale.min():g} is not a positive number")
        return scale

    def read_scaling(self, scale: int, zeropt: int, role: str) -> CodeScaling:
        """Return the scale and the zero-point of a whole tensor of 8-bit codes.

        Args:
            scale, zeropt: Their places.
            role: The name of the tensor.

        Raises:
            Inexpressible: There are several, or they are computed at run time.
        """
        scales = self.read_scale(scale, f"scale of the {role}")
        return CodeScaling(self._take_one(scales, role), self.read_zeropt(zeropt, role))

    def read_zeropt(self, place: int, role: str, codes: int | None = None) -> Array:
        """Return the only zero-point of a tensor, as `read_zeropts` does."""
        return self._take_one(self.read_zeropts(place, role, codes), role)

    def read_zeropts(self, place: int, role: str, codes: int | None = None) -> Array:
        """Return the zero-points of a tensor: without any 0, in the type of an input of codes.

        Args:
            place: Their place.
            role: The name of the tensor.
            codes: The place of that input; None for the first one of codes.

        Raises:
            Inexpressible: They are computed at run time, or are not those of 8-bit codes.
        """
        if get_input(self.node, place) is not None:
            zeropts = self.read_constant(place, f"zero-point of the {role}")
        else:
            zeropts = np.zeros((), self._get_code_type(codes, role).numpy())
        if zeropts.dtype not in CODES:
            raise Inexpressible(f"the {role} has codes of {zeropts.dtype}: quantize it to 8 bits")
        return zeropts

    def _get_code_type(self, place: int | None, role: str) -> ir.DataType:
        """Return the type of an input of codes, by default of the first one.

        Raises:
            Inexpressible: It is unknown.
        """
        places = range(len(self.node.inputs)) if place is None else (place,)
        values = [get_input(self.node, number) for number in places]
        for value in values:
            if value is not None and value.dtype in CODE_TYPES:
                return value.dtype
        raise Inexpressible(f"the {role} has no zero-point, and the type of its codes is unknown")

    def _take_one(self, array: Array, role: str) -> Array:
        if array.size != 1:
            raise Inexpressible(f"the {role} has {array.size} scales or zero-points, not one")
        return array.reshape(())

    def read_floats(self, place: int, scaling: CodeScaling) -> ir.Value:
        """Return an input of codes as floats: (code - zero-point) * scale."""
        value = self.get_value(place, "codes")
        if is_constant(value):
            codes = read_array(value).astype(np.float32) - scaling.zeropt.astype(np.float32)
            return self.add_constant("codes", codes * scaling.scale)
        floats = self._copies.read(value, scaling, self.node)
        self._read.append((place, floats, scaling))
        return floats

    def read_integers(self, place: int, zeropt: Array) -> ir.Value:
        """Return an input of codes as floats: code - zero-point."""
        return self.read_floats(place, CodeScaling(ONE, zeropt))

    def scale_integers(self, place: int, scaling: CodeScaling) -> ir.Value:
        """Return the same floats as `read_floats`, from the integers that other operators read."""
        integers = self.read_integers(place, scaling.zeropt)
        return self.insert("Mul", [integers, self.add_constant("scale", scaling.scale)])

    def insert(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr] = (),
        dtype: ir.DataType = _FLOAT,
    ) -> ir.Value:
        """Insert the next node; return its output."""
        like, name = self.node.outputs[0], f"{self.name}_{kind.lower()}"
        value = self._copies.editor.insert(
            self.node, kind, inputs, name, like=like, dtype=dtype, attributes=attributes
        )
        self.chain.append(require_producer(value))
        return value

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Insert a Cast."""
        return self.insert("Cast", [value], [ir.AttrInt64("to", dtype)], dtype)

    def add_constant(self, role: str, array: Array) -> ir.Value:
        """Return a constant."""
        return self._copies.editor.share_constant(role, f"{self.name}_{role}", np.asarray(array))

    def dequantize_weights(self, codes: Array) -> ir.Value:
        """Return int8 weights as floats of the scale 1."""
        constants = [self.add_constant("weights", codes), self.add_constant("one", ONE)]
        return self._copies.editor.insert(
            self.node,
            "DequantizeLinear",
            constants,
            f"{self.name}_weight_floats",
            like=constants[0],
            dtype=_FLOAT,
        )

    def quantize(self, value: ir.Value, scaling: CodeScaling) -> ir.Value:
        """Insert the last node, a QuantizeLinear; return its codes."""
        name = f"{self.name}_codes"
        codes = self._copies.convert("QuantizeLinear", value, scaling, self.node, name)
        self.chain.append(require_producer(codes))
        return codes

    def dequantize(self, codes: ir.Value, scaling: CodeScaling) -> ir.Value:
        """Insert a DequantizeLinear of codes that the chain computes."""
        name = f"{self.name}_floats"
        floats = self._copies.convert("DequantizeLinear", codes, scaling, self.node, name)
        self.chain.append(require_producer(floats))
        return floats
