# SPDX-License-Identifier: Apache-2.0
"""What a compilation made of a model."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from anybit.lowbit.layers import Guarantee, Layer
from anybit.lowbit.program import Program
from anybit.text import counted


@dataclass(frozen=True)
class Report:
    """The layers of a model, one by one and in all.

    Attributes:
        layers: In the order of the graph, those that stay float among them.
        programs: One per integer region.
    """

    layers: tuple[Layer, ...]
    programs: tuple[Program, ...] = field(repr=False)

    @property
    def products(self) -> tuple[Layer, ...]:
        """The layers that multiply: means are layers, too."""
        return tuple(layer for layer in self.layers if layer.macs or layer.guarantee is None)

    @property
    def compiled(self) -> tuple[Layer, ...]:
        """Those that run on integers."""
        return tuple(layer for layer in self.products if layer.guarantee is not None)

    @property
    def share(self) -> float:
        """How much of all multiplications these do."""
        return _ratio(sum(each.macs for each in self.compiled), sum(e.macs for e in self.products))

    @property
    def coverage(self) -> str:
        """In words: "12 of 13 layers, 99.2 % of MACs"."""
        some, all_of_it = len(self.compiled), len(self.products)
        if not all_of_it:
            return "no layers that multiply"
        return f"{some} of {counted(all_of_it, 'layer')}, {_per_cent(self.share)} of MACs"

    @property
    def guarantees(self) -> dict[Guarantee, int]:
        """How many layers have each class; classes that none has are missing."""
        counts = Counter(layer.guarantee for layer in self.compiled)
        return {each: counts[each] for each in Guarantee if counts[each]}

    def to_json(self) -> dict[str, Any]:
        """All of it as numbers, texts, lists and dicts."""
        return {
            "coverage": {
                "layers": len(self.compiled),
                "of": len(self.products),
                "macs": self.share,
            },
            "regions": len(self.programs),
            "layers": [
                asdict(layer) | {"accumulator_bits": layer.accumulator_bits}
                for layer in self.layers
            ],
        }

    def __str__(self) -> str:
        return self.coverage


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _per_cent(share: float) -> str:
    """100 only if it is all."""
    text = f"{100 * share:.1f}"
    return "100 %" if share == 1 else f"{'99.9' if text == '100.0' else text} %"
