# SPDX-License-Identifier: Apache-2.0
"""The builder of the networks of `networks.py`: a graph that grows, and its quantizers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from small_models import DOMAIN

# Beyond one word of bits, and not divided by the size of any vector.
CHANNELS = (3, 8, 2, 1, 4, 5, 17, 33, 65)
SIZES = (3, 5, 6, 9, 2, 1)


@dataclass(frozen=True)
class Tensor:
    """A value of the graph.

    Attributes:
        name: Its name.
        row: Its sizes after the batch axis.
        axis: Where its channels lie, counted in the row.
        spread: How large its numbers are, about.
        codes: Whether it is quantized.
    """

    name: str
    row: tuple[int, ...]
    axis: int = 0
    spread: float = 1.0
    codes: bool = False

    @property
    def channels(self) -> int:
        return self.row[self.axis]

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Reshape one value per channel, with axes of size 1 for the others."""
        return values.reshape([-1 if at == self.axis else 1 for at in range(len(self.row))])


@dataclass(frozen=True, repr=False)
class Network:
    """A model with the input x and the output y.

    Attributes:
        proto: The model; its batch is symbolic.
        row: The sizes of x after the batch axis.
        steps: What the numbers of x are compared with: rounding changes at multiples of half of it.
        codes: Whether y is quantized.
        seed: For inputs.
    """

    proto: onnx.ModelProto
    row: tuple[int, ...]
    steps: np.ndarray
    codes: bool
    seed: int

    def __repr__(self) -> str:
        return f"{onnx.printer.to_text(self.proto)}\nrow {self.row}, seed {self.seed}"


@dataclass
class Builder:
    """A graph that grows at its end, which is `last`.

    Attributes:
        qdq: Whether quantizers are pairs of QuantizeLinear and DequantizeLinear.
    """

    draw: Any
    random: np.random.Generator
    powers: bool
    qdq: bool
    last: Tensor
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    steps: np.ndarray | None = None

    def chance(self, one_in: int) -> bool:
        return bool(self.draw(st.integers(0, one_in - 1)) == one_in - 1)

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        made = helper.make_node(kind, inputs, [name], f"{name}_node", domain=domain, **attributes)
        self.nodes.append(made)
        return name

    def grow(self, kind: str, *more: str, **attributes: Any) -> None:
        """Add a node that reads `last` and keeps its sizes; the result is not quantized."""
        name = self.node(kind, [self.last.name, *more], **attributes)
        self.last = replace(self.last, name=name, codes=False)

    def per_channel(self, low: float, high: float) -> str:
        values = self.random.uniform(low, high, self.last.channels)
        return self.constant(self.last.broadcast(values))

    def quantize(self, x: Tensor, bits: int | None = None) -> Tensor:
        """Add a quantized activation whose scale fits its values, except for one in twenty."""
        if not self.qdq and self.chance(4):
            scale = self.scale(x, x.spread, 1, per_channel=self.chance(4))
            name = self.node("BipolarQuant", [x.name, self.constant(scale)], DOMAIN)
            return replace(x, name=name, spread=float(np.abs(scale).max()), codes=True)
        bits = 8 if self.qdq else self.draw(st.integers(1, 8)) if bits is None else bits
        off = self.one_of(*(1.0,) * 18, 1024.0, 2.0**-10)
        scale = self.scale(x, x.spread * off, bits, per_channel=self.chance(4))
        if x.name == "x":
            self.steps = scale
        largest = float(np.abs(scale).max()) * 2**bits
        named = self.qdq_pair(x, scale) if self.qdq else self.int_quant(x, scale, bits)
        return replace(x, name=named, spread=min(x.spread, largest), codes=True)

    def scale(self, x: Tensor, spread: float, bits: int, per_channel: bool) -> np.ndarray:
        """Scales so that codes are used; arbitrary ones, or powers of two."""
        count = x.channels if per_channel else 1
        scale = 2 * spread / 2**bits * self.random.uniform(0.5, 1.5, count)
        if self.powers or self.chance(2):
            scale = 2.0 ** np.rint(np.log2(scale))
        return x.broadcast(scale) if per_channel else np.float32(scale[0])

    def int_quant(self, x: Tensor, scale: np.ndarray, bits: int) -> str:
        signed, narrow = self.chance(2), self.chance(2)
        zero = float(self.one_of(0, 0, 0, 0, 1, 3))
        mode = self.one_of("ROUND", "ROUND", "ROUND", "FLOOR", "CEIL", "HALF_UP", "DOWN")
        inputs = [self.constant(parameter) for parameter in (scale, zero, bits)]
        flags = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": mode}
        return self.node("Quant", [x.name, *inputs], DOMAIN, **flags)

    def qdq_pair(self, x: Tensor, scale: np.ndarray) -> str:
        dtype, zero = self.one_of((np.int8, 0), (np.uint8, 0), (np.uint8, 128), (np.int8, -7))
        flat = np.abs(np.atleast_1d(np.ravel(scale)))
        one = flat.size == 1
        parameters = [
            self.constant(flat[0] if one else flat),
            self.constant(zero if one else np.full(flat.size, zero), dtype),
        ]
        axis = {} if one else {"axis": x.axis + 1}
        codes = self.node("QuantizeLinear", [x.name, *parameters], **axis)
        return self.node("DequantizeLinear", [codes, *parameters], **axis)

    def weights(self, shape: tuple[int, ...], axis: int) -> tuple[str, float]:
        """Quantized weights, and how large they are; dead channels and scales of 0 among them."""
        values = self.random.normal(0, 0.5, shape)
        rows = np.moveaxis(values, axis, 0)
        if self.chance(5):
            rows[self.random.integers(len(rows))] = 0
        weight = Tensor(self.constant(values), shape, axis, 0.5)
        if self.qdq:
            return self.integer_weights(values, weight)
        if self.chance(4):
            scale = self.scale(weight, 0.5, 1, per_channel=self.chance(2))
            return self.node("BipolarQuant", [weight.name, self.constant(scale)], DOMAIN), 0.5
        bits = self.draw(st.integers(1, 8))
        scale = self.scale(weight, 1.0, bits, per_channel=self.chance(2))
        if np.ndim(scale) and (rows[0] != 0).all() and self.chance(4):
            scale[np.unravel_index(0, scale.shape)] = 0
        if self.chance(8):
            scale = -scale
        return self.int_quant(weight, scale, bits), 0.5

    def integer_weights(self, values: np.ndarray, weight: Tensor) -> tuple[str, float]:
        scale = np.atleast_1d(self.scale(weight, 1.0, 8, per_channel=self.chance(2)))
        shaped = weight.broadcast(scale.ravel()) if scale.size > 1 else scale
        codes = self.constant(np.clip(np.rint(values / shaped), -127, 127), np.int8)
        one = scale.size == 1
        inputs = [codes, self.constant(scale.ravel()[0] if one else scale.ravel())]
        axis = {} if one else {"axis": weight.axis}
        return self.node("DequantizeLinear", inputs, **axis), 0.5
