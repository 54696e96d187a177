# SPDX-License-Identifier: Apache-2.0
"""Functions of C that layers share."""

from dataclasses import dataclass, field

from anybit.compiler.backends.c.templates import render
from anybit.compiler.backends.c.types import CType
from anybit.compiler.backends.c.weights import Packing


@dataclass
class Helpers:
    """The shared functions that a file needs.

    Attributes:
        sums: Types of elements that are added.
        dots: Types of elements, weights that they are multiplied with, rows of these, and whether
            elements are 0 and 1.
        tiles: Whether several pixels are multiplied together on x86.
        windows: Whether several pixels of depthwise products are.
        scalings: Whether several sums are scaled together on x86.
        searches: Types of thresholds that are searched.
        steps: Whether thresholds at equal steps are counted.
        batches: Types of thresholds that are searched for eight numbers together on x86.
        four_bytes: Whether four bytes are read together where there are pairs of products.
        orders_floats: Whether floats are compared with thresholds.
        floats: Functions of floats: larger, smaller.
    """

    sums: set[CType] = field(default_factory=set)
    dots: set[tuple[CType, Packing, int, bool]] = field(default_factory=set)
    tiles: bool = False
    windows: bool = False
    scalings: bool = False
    searches: set[CType] = field(default_factory=set)
    steps: bool = False
    batches: set[CType] = field(default_factory=set)
    four_bytes: bool = False
    orders_floats: bool = False
    floats: set[str] = field(default_factory=set)

    def render(self, index: str) -> str:
        """Return the functions; indices have this type."""
        return render(
            "helpers.c.j2",
            sums=sorted(self.sums, key=lambda kind: kind.value),
            dots=sorted(self.dots, key=lambda dots: (dots[0].value, dots[1].value, *dots[2:])),
            binary=any(binary for *_, binary in self.dots),
            pairs_of_products=self._has_pairs(),
            four_bytes=self.four_bytes or self._has_pairs(),
            tiles=self.tiles,
            windows=self.windows,
            scalings=self.scalings,
            index=index,
            searches=sorted(self.searches, key=lambda kind: kind.value),
            steps=self.steps,
            batches=sorted(self.batches, key=lambda kind: kind.value),
            orders_floats=self.orders_floats,
            floats=self.floats,
            cast=lambda kind: "" if kind.size == 1 else "(int32_t)",
        )

    @property
    def has_levels(self) -> bool:
        """Return whether functions are selected by the instruction sets of an x86."""
        return self.tiles or self.windows

    def _has_pairs(self) -> bool:
        """Return whether dot products add pairs of products where a target can."""
        return any(
            ctype.size == 1 and packing is not Packing.INT8 for ctype, packing, *_ in self.dots
        )
