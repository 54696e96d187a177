# SPDX-License-Identifier: Apache-2.0
"""What a compilation made of a model."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from anybit.compiler.layer import CompiledLayer
from anybit.compiler.program.program import Program
from anybit.layers.layer import Guarantee
from anybit.layers.wording import row, with_total
from anybit.text import counted, duration, percent

# Less may be chance.
_CLEARLY = 1.1


@dataclass(frozen=True)
class Seconds:
    """The shortest time of a run of one row, in seconds.

    Attributes:
        one_thread: With one thread.
        default: With as many threads as the program takes by default.
    """

    one_thread: float
    default: float


@dataclass(frozen=True)
class Speed:
    """Times of the same row in the same run.

    Attributes:
        compiled: The compiled model.
        quantized_graph: The quantized graph, computed in floats as `anybit run` does: ONNX Runtime
            without graph optimizations. Nobody deploys it.
        float_model: The float model in ONNX Runtime with its default options; None if unknown.
        static_int8: ONNX Runtime's static int8 quantization of that float model, with default
            options; None where it was not measured, or cannot be made.
        float_name: What the float model is: a file, or the network without its quantizers.
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
        """What the compiled model is compared with, by name, the most relevant first."""
        every = {
            self.float_name: self.float_model,
            "static int8 (ONNX Runtime)": self.static_int8,
            "quantized graph": self.quantized_graph,
        }
        return {name: seconds for name, seconds in every.items() if seconds is not None}

    @property
    def is_slower(self) -> bool:
        """Whether the compiled model is clearly slower than its first peer on one thread."""
        first = next(iter(self.peers.values()))
        return self.compiled.one_thread > _CLEARLY * first.one_thread

    def rows(self) -> list[dict[str, str]]:
        """Return the table: the times of each side, and how many times as fast compiled is."""
        rows = [_row("compiled", self.compiled)]
        return rows + [_row(name, each, self.compiled) for name, each in self.peers.items()]

    def __str__(self) -> str:
        name, first = next(iter(self.peers.items()))
        own = self.compiled.one_thread
        return (
            f"{duration(own)} per row on one thread: {_ratio(first.one_thread, own)} x as fast as "
            f"the {name} in ONNX Runtime ({duration(first.one_thread)})"
        )


def _row(name: str, seconds: Seconds, compiled: Seconds | None = None) -> dict[str, str]:
    cells = [duration(seconds.one_thread), duration(seconds.default)]
    if compiled is not None:
        cells[0] += f" ({_ratio(seconds.one_thread, compiled.one_thread)} x)"
        cells[1] += f" ({_ratio(seconds.default, compiled.default)} x)"
    return {"one row": name, "1 thread": cells[0], "default threads": cells[1]}


def _ratio(seconds: float, compiled: float) -> str:
    return f"{seconds / compiled:.3g}"


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


_HEADINGS = (
    *("layer", "operator", "class", "bits", "MACs", "acc. bits", "results", "at risk", "kernel"),
    *("time", "in floats"),
)


def table_rows(report: Report) -> list[dict[str, str]]:
    """Return one row per layer, with times one for what lies between them, and one for all.

    The times add up to that of a whole run. Columns without any entry are left out.
    """
    all_rows = [row(layer) | _run(layer) for layer in report.layers]
    said = [each for each in _HEADINGS if any(row[each] for row in all_rows)]
    cells = [{heading: row[heading] for heading in said} for row in all_rows]
    table = with_total(report.layers, cells)
    if report.speed is None or "time" not in said:
        return table
    return _with_total_times(table[: len(cells)], table[len(cells) :], report, report.speed)


def _with_total_times(
    layers: list[dict[str, str]], total: list[dict[str, str]], report: Report, speed: Speed
) -> list[dict[str, str]]:
    """Return the rows of layers, one of the time between them, and one of whole runs."""
    whole = {"time": speed.compiled.one_thread, "in floats": speed.quantized_graph.one_thread}
    spent = {
        "time": sum(layer.seconds or 0.0 for layer in report.layers),
        "in floats": sum(layer.float_seconds or 0.0 for layer in report.layers),
    }
    blank = dict.fromkeys(layers[0], "")
    between = {name: _time(max(whole[name] - spent[name], 0.0)) for name in whole}
    last = (total or [blank | {"layer": "whole run"}])[0]
    return [
        *layers,
        blank | {"layer": "between layers", "bits": "-"} | between,
        last | {name: _time(seconds) for name, seconds in whole.items()},
    ]


def _run(layer: CompiledLayer) -> dict[str, str]:
    results = f"{layer.levels} codes" if layer.levels else "floats"
    return {
        "results": f"{results} by {layer.tail.lower()}" if layer.tail else "",
        "at risk": format_risks(layer),
        "kernel": layer.kernel,
        "time": _time(layer.seconds),
        "in floats": _time(layer.float_seconds),
    }


def format_risks(layer: CompiledLayer) -> str:
    """How many accumulators are at risk; "1000+" where not all have been looked at."""
    return (
        f"{len(layer.risks)}{'+' if layer.more_risks else ''}"
        if layer.risks or layer.more_risks
        else ""
    )


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def summarize(report: Report) -> str:
    """Coverage and classes: "9 of 9 layers, 100 % of MACs on integers: 9 exact"."""
    classes = ", ".join(f"{count} {each.value}" for each, count in report.guarantees.items())
    return f"{report.coverage} on integers" + (f": {classes}" if classes else "")
