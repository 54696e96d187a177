# SPDX-License-Identifier: Apache-2.0
"""What is striking about a quantized model, in plain words, each with what to try."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anybit.quantization.certainty import FEWEST
from anybit.reporting.facts import Finding, Report, ReportedLayer, Tensor
from anybit.text import counted, listed, percent, shortened

_MOST = 12
# One channel alone takes so much of a range that all others share, or a quantizer cuts so much off.
_ALONE, _CLIPPED = 0.75, 0.01
_SEVERAL, _FELT = 3, 0.002
# A grid reaches farther than what was seen by so much.
_UNUSED = 4.0
# One layer makes so much of the noise, and so many times as much as it would if all made the same.
_NOISY, _TIMES_ITS_SHARE = 0.3, 2.0


def with_findings(report: Report) -> Report:
    """The report with what is striking about it, the worst first."""
    found = [
        *_of_verdict(report),
        *_of_noise(report),
        *(each for layer in report.ranked for each in _of_layer(layer)),
        *_of_left(report),
    ]
    return replace(report, findings=tuple(found[:_MOST]))


def _of_verdict(report: Report) -> Iterator[Finding]:
    verdict = report.verdict
    if verdict is None:
        return
    if not verdict.passed:
        yield Finding(
            f"Quality check failed: {'; '.join(verdict.failures)}.",
            "Give the layers with the most noise more bits (--layer, --budget), or keep their "
            "floats (--keep).",
        )
    if verdict.seen or verdict.samples < FEWEST:
        were = "was" if verdict.samples == 1 else "were"
        few = f"Only {counted(verdict.samples, 'sample')} {were}"
        yield Finding(
            f"{'No sample was' if verdict.seen else few} held back to judge by.",
            "Give hundreds of samples; they need no labels.",
        )


def _of_noise(report: Report) -> Iterator[Finding]:
    striking = max(_NOISY, _TIMES_ITS_SHARE / max(len(report.layers), 1))
    for layer in report.ranked[:1]:
        if layer.noise is not None and layer.noise > striking:
            yield Finding(
                f"{percent(layer.noise)} of the noise of all layers comes from {_name(layer)}.",
                "Give that layer more bits (--layer), or keep it in floats (--keep).",
            )


def _of_layer(layer: ReportedLayer) -> Iterator[Finding]:
    for tensor in layer.tensors:
        name = f"the {tensor.role} of {_name(layer)}"
        if tensor.alone is not None and _is_lonely(layer, tensor, tensor.alone[1]):
            channel, share = tensor.alone
            yield Finding(
                f"One channel, number {channel}, carries {percent(share)} of the range of {name}.",
                "Give its weights a scale per channel (--weights 'int8 per-channel')."
                if tensor.role == "weights"
                else "Give the layer more bits, or keep it in floats.",
            )
        if tensor.role == "activations" and (tensor.clipped or 0) > _CLIPPED:
            yield Finding(
                f"{percent(tensor.clipped or 0)} of {name} are cut off at the ends of the range.",
                "If these data are like those that it will see, calibrate with more of them.",
            )
        yield from _of_range(tensor, name)


def _is_lonely(layer: ReportedLayer, tensor: Tensor, share: float) -> bool:
    """Whether one channel takes the range from several others, and that may be felt."""
    felt = layer.noise is None or layer.noise > _FELT
    return share > _ALONE and tensor.scales == 1 and tensor.channels >= _SEVERAL and felt


def _of_range(tensor: Tensor, name: str) -> Iterator[Finding]:
    seen = tensor.histogram
    if seen is None or tensor.role == "weights":
        return
    if seen.lowest == seen.highest:
        yield Finding(
            f"Nothing but {seen.lowest:.6g} was seen of {name}.",
            "The layer does nothing on these data: see whether they are as they should be.",
        )
    elif _UNUSED * (seen.highest - seen.lowest) < tensor.highest - tensor.lowest:
        share = (seen.highest - seen.lowest) / (tensor.highest - tensor.lowest)
        yield Finding(
            f"Only {percent(share)} of the range for {name} was used.",
            "See whether these data are like those that it was calibrated with.",
        )


def _of_left(report: Report) -> Iterator[Finding]:
    floats = list(report.left) or [each.name for each in report.layers if each.bits == 32]
    if floats:
        yield Finding(
            f"{counted(len(floats), 'layer')} {'computes' if len(floats) == 1 else 'compute'} "
            f"in floats: {_listed(floats)}.",
            "The report says why, layer by layer.",
        )


def _listed(names: Sequence[str]) -> str:
    return listed(map(shortened, names), 4)


def _name(layer: ReportedLayer) -> str:
    return shortened(layer.name)
