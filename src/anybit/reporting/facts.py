# SPDX-License-Identifier: Apache-2.0
"""What a report holds: plain data, of which pages, tables and JSON are made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from anybit.layers.layer import Layer
from anybit.quantization import Mix, Verdict
from anybit.quantization.ranges import RangeCandidate


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each of the even bins of a range."""

    lowest: float
    highest: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """What a quantizer does to what a layer multiplies.

    Values are counted in steps of their channels' scales, zero-point included, where there are
    several scales; else as they are.

    Attributes:
        name: The tensor before its quantizer.
        role: "weights" or "activations".
        kind: The grid in words: "uint8", "float4_e2m1fn".
        scales: How many scales there are.
        in_steps: Whether the histogram and the grid count steps.
        lowest, highest: The ends of the grid.
        values: All of its values, if these are few.
        histogram: Of what was seen; None of activations without data.
        clipped: The share that is beyond the ends of the grid; None where that cannot be said.
        sqnr: Signal over noise of the tensor itself, in dB; None if it is stored as codes only.
        reach: The largest magnitude per channel; of neighbours together where there are many.
        channels: How many channels there are; 0 if that is not known.
        alone: The channel that reaches farthest, and the part of its reach to which no other one
            comes; None where there are no channels, or but one that is not 0.
    """

    name: str
    role: str
    kind: str
    scales: int
    in_steps: bool
    lowest: float
    highest: float
    values: tuple[float, ...] = ()
    histogram: Histogram | None = None
    clipped: float | None = None
    sqnr: float | None = None
    reach: tuple[float, ...] = ()
    channels: int = 0
    alone: tuple[int, float] | None = None


@dataclass(frozen=True)
class ReportedLayer:
    """A layer, as the analysis sees it, and what else is known of it.

    Attributes:
        layer: Its sizes, bits, accumulators and class.
        tensors: What it multiplies and has a quantizer for.
        bytes: What its constant weights take at their bits.
        sqnr: Signal over noise of its own output, all else being float, in dB; None if not known.
        output_sqnr: The same of the outputs of the model; None if not known.
        noise: Its share in the noise of all layers, at the outputs where that is known for all of
            them, else at their own; None if not known.
        smoothed: Whether channels of its activations are scaled against its weights.
        tried: The ranges that its activations might have had: the whole one, and the best.
    """

    layer: Layer
    tensors: tuple[Tensor, ...] = ()
    bytes: int = 0
    sqnr: float | None = None
    output_sqnr: float | None = None
    noise: float | None = None
    smoothed: bool = False
    tried: tuple[RangeCandidate, ...] = ()

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def bits(self) -> int:
        """Those of its weights; of two computed factors the fewer."""
        return self.layer.weight_bits


@dataclass(frozen=True)
class Ran:
    """What is known of a run.

    Attributes:
        digest: Of the names, types, shapes and bytes of all samples, in their order.
        samples, seen: How many there are, and how many were run.
        seconds: The shortest time of one sample.
    """

    digest: str
    samples: int
    seen: int
    seconds: float


@dataclass(frozen=True)
class Sample:
    """A sample for which the model is worse than for others.

    Attributes:
        name: The file that it is from, and its place in that; "" if it is from none.
        number, sqnr, agrees: As of `anybit.quantization.Example`.
    """

    name: str
    number: int
    sqnr: float
    agrees: bool | None


@dataclass(frozen=True)
class Finding:
    """Something that is worth knowing, and what to try."""

    text: str
    remedy: str

    @property
    def words(self) -> str:
        """Both, as one line of a list."""
        return f"* {self.text} {self.remedy}"


@dataclass(frozen=True)
class Report:
    """What is to be said of a quantized model.

    Attributes:
        name: The file, or "the model".
        layers: In the order of the graph.
        left: What keeps its floats although it multiplies, and why; empty if nobody knows.
        verdict: What quantization did to the outputs; None if that was not seen.
        bytes_before, bytes_after: What constants take in floats, and at their bits.
        findings: The worst first.
        command: What made the model; "" if that is not known.
        worst: The samples with the least SQNR, of those that the verdict is on.
        front: The mixes of widths that could be had; empty if there was no choice.
        ran: What the data are that it was run on; None without.
    """

    name: str
    layers: tuple[ReportedLayer, ...]
    left: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    findings: tuple[Finding, ...] = ()
    command: str = ""
    ran: Ran | None = None
    worst: tuple[Sample, ...] = ()
    front: tuple[Mix, ...] = ()

    @property
    def ranked(self) -> tuple[ReportedLayer, ...]:
        """The layers, those with the most noise first; else those of the most bits and work."""
        return tuple(
            sorted(self.layers, key=lambda each: (-(each.noise or 0), -(each.layer.bops or 0)))
        )

    def to_json(self) -> dict[str, Any]:
        """All of it in terms of JSON."""
        found = asdict(self)
        if self.verdict is not None:
            found["verdict"]["passed"] = self.verdict.passed
            found["verdict"]["failures"] = list(self.verdict.failures)
        for layer in found["layers"]:
            layer.update(layer.pop("layer"))
        return found
