# SPDX-License-Identifier: Apache-2.0
"""Layouts of the weights of sums of products."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.view import View, get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True)
class ProductLayout:
    """The inputs of a product, and the layout of its weight.

    Attributes:
        x, weight: The indices of the two inputs.
        bias: The index of the bias; None without one.
        x_axis: The reduction axis of x (its channels), counted from the end.
        y_axis: The axis of the output channels, counted from the end; None without one.
        groups: The number of groups of channels of x and of the output.
        padded: Whether x is padded with zeros.
    """

    x: int
    weight: int
    bias: int | None
    x_axis: int
    y_axis: int | None
    groups: int
    padded: bool
    kind: str
    transposed: bool = False

    @property
    def weight_axis(self) -> int:
        """Return the axis of the weight along the output channels, counted from the end.

        For a grouped ConvTranspose, this axis holds the output channels of one group.
        """
        match self.kind:
            case "MatMul":
                return -1 if self.weight == 1 else -2
            case "Gemm":
                return -2 if self.transposed else -1
            case "ConvTranspose":
                return self.x_axis
            case _:
                return self.x_axis - 1

    def canonical(self, weight: Array) -> Array:
        """Return the weight as (groups, output channels, channels of x, taps).

        Raises:
            Mismatch: The weight has another rank or no elements, or its sizes do not fit the
                groups.
        """
        if not weight.size:
            raise Mismatch("the weight has no elements")
        match self.kind:
            case "MatMul":
                if weight.ndim == 0:
                    raise Mismatch("a number is not a matrix")
                first = weight if self.weight == 0 or weight.ndim == 1 else weight.swapaxes(-1, -2)
                return first.reshape(1, -1, first.shape[-1], 1)
            case "Gemm":
                if weight.ndim != 2:
                    raise Mismatch("Gemm multiplies matrices")
                outer = weight if self.transposed else weight.T
                return outer.reshape(1, *outer.shape, 1)
        if weight.ndim < 3 or self.groups < 1 or len(weight) % self.groups:
            raise Mismatch("its weight cannot be divided into its groups")
        split = weight.reshape(self.groups, len(weight) // self.groups, weight.shape[1], -1)
        return np.swapaxes(split, 1, 2) if self.kind == "ConvTranspose" else split


def make_weight_layout(kind: str, rank: int) -> ProductLayout:
    """Return the layout of a Conv or MatMul of one group with a weight of this rank."""
    if kind == "MatMul":
        return ProductLayout(0, 1, None, -1, -1 if rank == 2 else None, 1, False, kind)
    return ProductLayout(0, 1, 2, 1 - rank, 1 - rank, 1, False, kind)


def find_layout(node: ir.Node, view: View) -> ProductLayout | None:
    """Return the layout of a MatMul-like node; None if attributes or inputs leave it open.

    Raises:
        ModelError: An attribute of a wrong type.
    """
    match node.op_type:
        case "MatMul":
            return _find_matmul_layout(node, view)
        case "Gemm":
            return _find_gemm_layout(node)
        case "Conv" | "ConvTranspose":
            return _find_conv_layout(node, view)
    return None


def _find_matmul_layout(node: ir.Node, view: View) -> ProductLayout | None:
    first, second = get_input(node, 0), get_input(node, 1)
    if first is None or second is None:
        return None
    swapped = _is_known(first, view) and not _is_known(second, view)
    weight, other = (first, second) if swapped else (second, first)
    rank, x_rank = view.get_rank(weight), view.get_rank(other)
    if swapped:
        # A vector x has only the reduction axis.
        x_axis = -1 if x_rank == 1 else -2
        y_axis = None if rank != 2 or x_rank is None else -1 if x_rank == 1 else -2
        return ProductLayout(1, 0, None, x_axis, y_axis, 1, False, "MatMul")
    return make_weight_layout("MatMul", 0 if rank is None else rank)


def _is_known(value: ir.Value, view: View) -> bool:
    abstract = view.get_abstract(value)
    return view.get_array(value) is not None or (
        abstract is not None and abstract.integers is not None
    )


def _find_gemm_layout(node: ir.Node) -> ProductLayout | None:
    if any(get_attribute(node, name, 1.0) != 1 for name in ("alpha", "beta")):
        return None
    transposed = bool(get_attribute(node, "transB", 0))
    x_axis = -2 if get_attribute(node, "transA", 0) else -1
    return ProductLayout(0, 1, 2, x_axis, -1, 1, False, "Gemm", transposed)


def _find_conv_layout(node: ir.Node, view: View) -> ProductLayout | None:
    weight = get_input(node, 1)
    rank = view.get_rank(weight)
    if rank is None or rank < 3:
        return None
    groups = get_attribute(node, "group", 1)
    padded = node.op_type == "ConvTranspose" or any(get_attribute(node, "pads", ()))
    automatic = get_attribute(node, "auto_pad", "NOTSET")
    padded = padded or automatic not in ("NOTSET", "VALID")
    axis = 1 - rank
    return ProductLayout(0, 1, 2, axis, axis, groups, padded, node.op_type)
