# SPDX-License-Identifier: Apache-2.0
"""What a compilation made of a model."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.program import Program
from anybit.lowbit.speed import Speed
from anybit.quant_types.layer_info import Guarantee
from anybit.text import counted, percent


@dataclass(frozen=True)
class Report:
    """The layers of a model, one by one and in all.

    Attributes:
        layers: In the order of the graph, those that stay float among them.
        programs: One per integer region.
        speed: How long a run takes, and one of each peer, if that was measured.
        measured: How the times of layers were.
        has_free_sizes: Whether inputs leave sizes open besides their rows, which --shape gives.
        is_integer_only: Whether activations between layers are quantized, as by --integer-only.
    """

    layers: tuple[CompiledLayer, ...]
    programs: tuple[Program, ...] = field(repr=False)
    speed: Speed | None = None
    measured: str = ""
    has_free_sizes: bool = False
    is_integer_only: bool = False

    @property
    def products(self) -> tuple[CompiledLayer, ...]:
        """The layers that multiply, each once: means are layers, too."""
        found = {layer.output: layer for layer in self.layers if layer.macs or not layer.guarantee}
        return tuple(found.values())

    @property
    def compiled(self) -> tuple[CompiledLayer, ...]:
        """Those that run on integers."""
        return tuple(layer for layer in self.products if layer.guarantee is not None)

    @property
    def share(self) -> float:
        """How much of all multiplications these do."""
        some, all_of_it = (
            sum(each.macs or 0 for each in layers) for layers in (self.compiled, self.products)
        )
        return some / all_of_it if all_of_it else 0.0

    @property
    def coverage(self) -> str:
        """In words: "12 of 13 layers, 99.2 % of MACs"."""
        some, all_of_it = len(self.compiled), len(self.products)
        if not all_of_it:
            return "no layers that multiply"
        unknown = sum(layer.macs is None for layer in self.products)
        rest = f" (not counting {counted(unknown, 'layer')} of unknown sizes)" if unknown else ""
        return f"{some} of {counted(all_of_it, 'layer')}, {percent(self.share)} of MACs{rest}"

    @property
    def guarantees(self) -> dict[Guarantee, int]:
        """How many layers have each class; classes that none has are missing."""
        counts = Counter(layer.guarantee for layer in self.compiled)
        return {each: counts[each] for each in Guarantee if counts[each]}

    @property
    def whole(self) -> str:
        """The speed in words, and what to do if it is none; empty if it was not measured."""
        if self.speed is None or not self.speed.is_slower:
            return str(self.speed or "")
        first = next(iter(self.speed.peers))
        return f"slower than the {first}: {self.speed}; {self._remedy}"

    @property
    def _remedy(self) -> str:
        left = [each for each in self.products if each.guarantee is None]
        unknown = [each for each in left if each.macs is None]
        if unknown and self.has_free_sizes:
            return "layers of unknown sizes stay floats: say those of inputs with --shape"
        if len(left) > len(unknown) or len(self.programs) > 1:
            requantize = "" if self.is_integer_only else "quantize with --integer-only, or "
            return (
                "where floats stay between integer regions, these cost more than they gain: "
                f"{requantize}run the model as it is"
            )
        return "run the model as it is"

    def to_json(self) -> dict[str, Any]:
        """All of it as numbers, texts, lists and dicts."""
        return {
            "coverage": {
                "layers": len(self.compiled),
                "of": len(self.products),
                "macs": self.share,
            },
            "whole": self.whole,
            "speed": None if self.speed is None else asdict(self.speed),
            "measured": self.measured,
            "regions": len(self.programs),
            "layers": [asdict(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        return self.coverage
