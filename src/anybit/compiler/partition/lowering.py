# SPDX-License-Identifier: Apache-2.0
"""Lowering as the partitioner asks for it: only instructions tell whether an expression has any."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import onnx_ir as ir

from anybit.compiler.partition.dynamic_codes import DynamicProduct
from anybit.compiler.partition.expressions import (
    Expression,
    FloatOperands,
    IntegerTensor,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.reason import Reason
from anybit.quant_types.grids import TensorGrid

T_co = TypeVar("T_co", bound=IntegerTensor | RegionOutput, covariant=True)


@dataclass(frozen=True, eq=False)
class Lowered(Generic[T_co]):
    """Instructions, and the tensor or the output of the region that the last one writes."""

    target: T_co
    instructions: tuple[PlannedInstruction, ...] = ()


class Lowering(Protocol):
    """Turns expressions into instructions."""

    def quantize_input(
        self, expression: Expression, grid: TensorGrid, layout: Layout
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a function of an input of the region to codes."""

    def compute_codes(
        self, expression: Expression, grid: TensorGrid
    ) -> Lowered[IntegerTensor] | Reason:
        """Lower a function of accumulators, or of one or two tensors, to codes."""

    def compute_floats(self, expression: Expression) -> Lowered[RegionOutput] | Reason | None:
        """Lower an expression to float32; None if only the float nodes compute it."""

    def gives_floats(self, expression: Expression) -> bool:
        """Return whether a function of accumulators can be computed in float32."""

    def compute_elementwise(
        self, operands: FloatOperands, nodes: Sequence[ir.Node]
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a chain of elementwise nodes from one or two arrays of float32 to float32."""

    def compute_dynamic_product(
        self, product: DynamicProduct, nodes: Sequence[ir.Node]
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a product of codes with a computed scale, and a chain of elementwise nodes."""

    def compute_function(
        self, node: ir.Node, source: RegionInput | RegionOutput, target: RegionOutput
    ) -> Lowered[RegionOutput] | Reason:
        """Lower a function of all channels, or of all pixels, in float32."""

    def change_layout(self, source: IntegerTensor, layout: Layout) -> Lowered[IntegerTensor]:
        """Lower a change of the order of axes."""

    def broadcast(self, source: IntegerTensor, layout: Layout) -> Lowered[IntegerTensor] | Reason:
        """Lower the repetition along axes of size 1."""
