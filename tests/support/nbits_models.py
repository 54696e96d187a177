# SPDX-License-Identifier: Apache-2.0
"""Models with ONNX Runtime's MatMulNBits, packed here, and their weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

ORT = "com.microsoft"


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes along the last axis in bytes, the first in the lowest bits; the last byte is filled."""
    per_byte = 8 // bits
    rows = codes.reshape(-1, codes.shape[-1])
    size = -(-rows.shape[1] // per_byte)
    result = np.zeros((len(rows), size), np.uint8)
    for index, row in enumerate(rows):
        for at, code in enumerate(row):
            result[index, at // per_byte] |= int(code) << (bits * (at % per_byte))
    return result.reshape(*codes.shape[:-1], size)


class NBits:
    """A weight of random codes with scales that are powers of two, so that sums are exact.

    Attributes:
        codes: [N, blocks, block]; those beyond K are random too.
        scales: [N, blocks].
        zeropts: [N, blocks], or None for the default.
    """

    def __init__(
        self,
        k: int = 40,
        n: int = 6,
        *,
        bits: int = 4,
        block: int = 16,
        zeropts: bool = False,
        negative: bool = False,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng(seed)
        self.k, self.n, self.bits, self.block = k, n, bits, block
        self.blocks = -(-k // block)
        self.codes = random.integers(0, 2**bits, (n, self.blocks, block))
        self.scales = 2.0 ** random.integers(-4, 3, (n, self.blocks)).astype(np.float32)
        if negative:
            self.scales *= random.choice([-1, 1], self.scales.shape)
            self.scales[0, 0] = -abs(self.scales[0, 0])
        self.zeropts = random.integers(0, 2**bits, (n, self.blocks)) if zeropts else None

    @property
    def weight(self) -> np.ndarray:
        """[K, N], in float64."""
        zeropts = 2 ** (self.bits - 1) if self.zeropts is None else self.zeropts[..., np.newaxis]
        blocks = (self.codes - zeropts) * self.scales[..., np.newaxis].astype(np.float64)
        return blocks.reshape(self.n, -1)[:, : self.k].T

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        tensors = {"b": pack_codes(self.codes, self.bits), "s": self.scales.astype(np.float32)}
        if self.zeropts is not None:
            tensors["z"] = pack_codes(self.zeropts, self.bits)
        return tensors

    @property
    def sizes(self) -> dict[str, int]:
        return {"K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block}

    def model(self, bias: np.ndarray | None = None, **attributes: Any) -> onnx.ModelProto:
        tensors = self.tensors if bias is None else {**self.tensors, "bias": bias}
        return nbits_model(tensors, {**self.sizes, **attributes})


def nbits_model(
    tensors: dict[str, np.ndarray],
    attributes: dict[str, Any],
    *,
    inputs: Sequence[str] = ("b", "s", "z", "g", "bias"),
    opset: int = 17,
    shape: Sequence[int | str] | None = None,
) -> onnx.ModelProto:
    """x -> MatMulNBits -> y, with those of the inputs that are tensors."""
    names = ["x", *(name if name in tensors else "" for name in inputs)]
    while not names[-1]:
        names.pop()
    kind = helper.np_dtype_to_tensor_dtype(tensors["s"].dtype) if "s" in tensors else 1
    node = helper.make_node("MatMulNBits", names, ["y"], name="product", domain=ORT, **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", kind, shape or ["rows", attributes["K"]])],
        [helper.make_tensor_value_info("y", kind, None if shape else ["rows", attributes["N"]])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(ORT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
