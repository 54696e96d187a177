# SPDX-License-Identifier: Apache-2.0
"""The times of a compiled model and of what users would run instead."""

from dataclasses import dataclass

from anybit.text import duration

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
