# SPDX-License-Identifier: Apache-2.0
"""Report of a compilation, and its text."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from anybit.compiler.layer import CompiledLayer
from anybit.compiler.program.program import Program
from anybit.compiler.selection import LeftRegion
from anybit.onnx.graph.op_traits import OpTrait, list_operators
from anybit.quant_types.layer_info import Guarantee
from anybit.text import format_count, format_duration, format_percent

_CLEARLY = 1.1
"""Smaller ratios of times may be noise."""


@dataclass(frozen=True)
class Seconds:
    """Shortest time of a run of one row, in seconds.

    Attributes:
        one_thread: With one thread.
        default: With the default number of threads.
    """

    one_thread: float
    default: float


@dataclass(frozen=True)
class Speed:
    """Times of one row, measured in turns.

    Attributes:
        compiled: The compiled model; if a session runs it, with ONNX Runtime's default options.
        quantized_graph: The quantized graph in float32, as `anybit run` computes it: ONNX Runtime
            without graph optimizations. Nobody deploys it.
        float_model: The float model in ONNX Runtime with its default options; None if unknown.
        static_int8: ONNX Runtime's static int8 quantization of that float model, with default
            options; None if it was not measured or cannot be made.
        float_name: The float model: a file, or the network without its quantizers.
        note: Why `float_model` is not the file that was quantized; empty if it is.
    """

    compiled: Seconds
    quantized_graph: Seconds
    float_model: Seconds | None = None
    static_int8: Seconds | None = None
    float_name: str = ""
    note: str = ""

    @property
    def peers(self) -> dict[str, Seconds]:
        """The models to compare with by name, the most relevant first."""
        every = {
            self.float_name: self.float_model,
            "static int8 (ONNX Runtime)": self.static_int8,
            "quantized graph": self.quantized_graph,
        }
        return {name: seconds for name, seconds in every.items() if seconds is not None}

    @property
    def is_slower(self) -> bool:
        """True if the compiled model is clearly slower than its first peer on one thread."""
        first = next(iter(self.peers.values()))
        return self.compiled.one_thread > _CLEARLY * first.one_thread

    def rows(self) -> list[dict[str, str]]:
        """Return a table of all times and speedups."""
        rows = [_make_row("compiled", self.compiled)]
        return rows + [
            _make_row(name, seconds, self.compiled) for name, seconds in self.peers.items()
        ]

    def __str__(self) -> str:
        name, first = next(iter(self.peers.items()))
        own = self.compiled.one_thread
        return (
            f"{format_duration(own)} per row on one thread: "
            f"{_format_ratio(first.one_thread, own)} x as fast as the {name} "
            f"in ONNX Runtime ({format_duration(first.one_thread)})"
        )


def _make_row(name: str, seconds: Seconds, compiled: Seconds | None = None) -> dict[str, str]:
    cells = [format_duration(seconds.one_thread), format_duration(seconds.default)]
    if compiled is not None:
        cells[0] += f" ({_format_ratio(seconds.one_thread, compiled.one_thread)} x)"
        cells[1] += f" ({_format_ratio(seconds.default, compiled.default)} x)"
    return {"one row": name, "1 thread": cells[0], "default threads": cells[1]}


def _format_ratio(seconds: float, compiled: float) -> str:
    return f"{seconds / compiled:.3g}"


@dataclass(frozen=True)
class Report:
    """Layers of a compiled model and their totals.

    Attributes:
        layers: The layers in the order of the graph, those that stay float32 too.
        programs: The programs of the integer regions.
        speed: Times of whole runs of the model and its peers, if they were measured.
        measured: Method of the times of layers.
        has_dynamic_sizes: Whether inputs have dynamic sizes besides their rows (see --shape).
        is_integer_only: Whether activations between layers are quantized, as by --integer-only.
        left: The regions that stay float32 because that is faster, if they were measured.
        widens_bytes: Whether this CPU multiplies bytes with 16 bits, as it has no instruction that
            adds products of any bytes exactly; known if layers were measured.
    """

    layers: tuple[CompiledLayer, ...]
    programs: tuple[Program, ...] = field(repr=False)
    speed: Speed | None = None
    measured: str = ""
    has_dynamic_sizes: bool = False
    is_integer_only: bool = False
    left: tuple[LeftRegion, ...] = ()
    widens_bytes: bool = False

    @property
    def products(self) -> tuple[CompiledLayer, ...]:
        """The layers that multiply, without duplicates: means are layers, too."""
        layers = {layer.output: layer for layer in self.layers if layer.macs or not layer.guarantee}
        return tuple(layers.values())

    @property
    def compiled(self) -> tuple[CompiledLayer, ...]:
        """The layers that multiply on integers."""
        return tuple(layer for layer in self.products if layer.guarantee is not None)

    @property
    def unsized(self) -> tuple[CompiledLayer, ...]:
        """The layers that stay float32 and might be compiled if their sizes were known."""
        recurrent = list_operators(OpTrait.RECURRENT)
        return tuple(
            layer
            for layer in self.products
            if layer.guarantee is None
            and layer.macs is None
            and layer.layer.operator not in recurrent
        )

    @property
    def share(self) -> float:
        """The share of the multiplications that are computed on integers, 0 to 1."""
        compiled, total = (
            sum(layer.macs or 0 for layer in layers) for layers in (self.compiled, self.products)
        )
        return compiled / total if total else 0.0

    @property
    def coverage(self) -> str:
        """The coverage as text: "12 of 13 layers, 99.2 % of MACs"."""
        compiled, total = len(self.compiled), len(self.products)
        if not total:
            return "no layers that multiply"
        unknown = sum(layer.macs is None for layer in self.products)
        rest = (
            f" (not counting {format_count(unknown, 'layer')} of unknown sizes)" if unknown else ""
        )
        layers, share = format_count(total, "layer"), format_percent(self.share)
        return f"{compiled} of {layers}, {share} of MACs{rest}"

    @property
    def guarantees(self) -> dict[Guarantee, int]:
        """The number of layers per guarantee; guarantees without layers are missing.

        Functions of floats, such as Softmax, count here: those of the results are theirs, too.
        """
        functions = [
            layer
            for layer in self.layers
            if layer.guarantee is not None and layer.layer.accumulator is None and not layer.macs
        ]
        counts = Counter(layer.guarantee for layer in (*self.compiled, *functions))
        return {guarantee: counts[guarantee] for guarantee in Guarantee if counts[guarantee]}

    @property
    def whole(self) -> str:
        """The speed as text, with a remedy for a slow model; empty if it was not measured."""
        if self.speed is None or not self.speed.is_slower:
            return str(self.speed or "")
        first = next(iter(self.speed.peers))
        return f"slower than the {first}: {self.speed}; {self._remedy(first)}"

    def _remedy(self, faster: str) -> str:
        floats = [layer for layer in self.products if layer.guarantee is None]
        unknown = self.unsized
        if unknown and self.has_dynamic_sizes:
            return "layers of unknown sizes stay float; give the sizes of inputs with --shape"
        remedy = f"{self._other_quantization}run the {faster}"
        if len(floats) > len(unknown) or len(self.programs) > 1:
            reason = "where floats stay between integer regions, these cost more than they gain"
            return f"{reason}: {remedy}"
        return remedy

    @property
    def _other_quantization(self) -> str:
        """Quantizations that are faster on this CPU, as text."""
        if any(layer.layer.dynamic for layer in self.products):
            return "quantize with data and static activations, or "
        options = [] if self.is_integer_only else ["--integer-only"]
        options += ["--weights int7"] if self.widens_bytes else []
        return f"quantize with {' or '.join(options)}, or " if options else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report in terms of JSON."""
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
            "left_in_float": [asdict(region) | {"ratio": region.ratio} for region in self.left],
            "layers": [asdict(layer) for layer in self.layers],
        }

    def __str__(self) -> str:
        return self.coverage
