# SPDX-License-Identifier: Apache-2.0
"""What pages and terminals say of a quantized model."""

import math
from dataclasses import dataclass

from anybit.quantization import Verdict
from anybit.quantization.certainty import FEWEST
from anybit.reporting.facts import Report, ReportedLayer
from anybit.text import amount, counted, duration, percent, shortened, sized

_FLOAT_BITS = 32

Row = dict[str, str]


@dataclass(frozen=True)
class Tile:
    """A figure: what it is, without quantization and with it."""

    label: str
    before: str
    after: str


def quality(verdict: Verdict) -> str:
    """Return the quality figures of the outputs in one line."""
    figures = []
    if verdict.sqnr is not None:
        figures.append(f"SQNR {decibels(verdict.sqnr)}")
    if verdict.correlation is not None:
        figures.append(f"correlation {correlation(verdict.correlation)}")
    if verdict.agreement is not None:
        figures.append(f"agreement {100 * verdict.agreement:.1f} %")
    if verdict.logits_agreement is not None:
        figures.append(f"same arg max {100 * verdict.logits_agreement:.1f} %")
    where = f"{verdict.samples} held-out {'sample' if verdict.samples == 1 else 'samples'}"
    if verdict.seen:
        where = "the only sample, which chose the quantizers"
    elif verdict.samples < FEWEST:
        where += " (few: give hundreds)"
    return f"On {where}: {', '.join(figures) or 'no output to compare'}"


def failure(verdict: Verdict) -> str:
    """Return which figures are below their thresholds; "" if none is."""
    failures = "; ".join(verdict.failures)
    return failures and f"quality check failed: {failures} (--fail-below)"


def sentence(report: Report) -> str:
    """The verdict; without one, how much is quantized."""
    if report.verdict is not None:
        failed = failure(report.verdict)
        return f"{quality(report.verdict)}{failed and f'; {failed}'}."
    quantized = sum(each.bits < _FLOAT_BITS for each in report.layers)
    return (
        f"{quantized} of {counted(len(report.layers), 'layer')} multiply few bits. The outputs "
        "were not compared with those of the float model."
    )


def tiles(report: Report) -> list[Tile]:
    """The figures of the whole model."""
    layers = [each.layer for each in report.layers]
    found = [Tile("constants", sized(report.bytes_before), sized(report.bytes_after))]
    parameters = sum(each.parameters for each in layers)
    if parameters:
        bits = sum(each.parameters * each.weight_bits for each in layers) / parameters
        found.append(Tile("bits of weights, mean", "32", f"{bits:.3g}"))
    macs = sum(each.macs or 0 for each in layers)
    if macs:
        before, after = macs * _FLOAT_BITS**2, sum(each.bops or 0 for each in layers)
        known = sum(each.macs is not None for each in layers)
        of = "" if known == len(layers) else f" of {counted(known, 'layer')}"
        found.append(Tile(f"operations on bits{of}", amount(before), amount(after)))
    verdict = report.verdict
    if verdict is not None and verdict.sqnr is not None:
        found.append(Tile("output SQNR", "", decibels(verdict.sqnr)))
    if verdict is not None and verdict.agreement is not None:
        found.append(Tile("agreement", "", percent(verdict.agreement)))
    elif verdict is not None and verdict.logits_agreement is not None:
        found.append(Tile("same arg max", "", percent(verdict.logits_agreement)))
    integer = sum(each.guarantee is not None for each in layers)
    if layers:
        found.append(Tile("layers on integers", "0", f"{integer} of {len(layers)}"))
    widest = max((each.accumulator_bits or 0 for each in layers), default=0)
    if widest:
        found.append(Tile("widest accumulator", "", f"{widest} bits"))
    if report.ran is not None:
        found.append(Tile("time of a sample", "", duration(report.ran.seconds)))
    return found


def decibels(sqnr: float | None) -> str:
    """A signal over noise, with its unit."""
    if sqnr is None:
        return ""
    return "no noise" if sqnr == math.inf else f"{sqnr:.1f} dB"


def correlation(r: float | None) -> str:
    """Return Pearson's r with four decimals; "" where it is not defined."""
    return "" if r is None else f"{r:.4f}"


def of_noise(noise: float) -> float:
    """Noise over signal, as powers, in dB."""
    return -10 * math.log10(noise) if noise > 0 else math.inf


COLUMNS = (
    *("layer", "operator", "class", "bits", "bytes", "MACs", "SQNR, dB", "output, dB"),
    *("noise", "acc. bits"),
    *("sums", "zeros", "result"),
)
NUMBERS = ("bytes", "MACs", "SQNR, dB", "output, dB", "noise", "acc. bits", "sums", "zeros", "bits")


def row(each: ReportedLayer) -> Row:
    """The cells of a layer by their headings."""
    layer = each.layer
    return {
        "layer": shortened(layer.name),
        "operator": shortened(layer.operator),
        "class": layer.kind,
        "bits": f"{layer.weight_bits} x {layer.input_bits}",
        "bytes": sized(each.bytes) if each.bytes else "",
        "MACs": "" if not layer.macs else amount(layer.macs),
        "SQNR, dB": "" if each.sqnr is None else f"{each.sqnr:.1f}",
        "output, dB": "" if each.output_sqnr is None else f"{each.output_sqnr:.1f}",
        "noise": "" if each.noise is None else percent(each.noise),
        "acc. bits": "" if layer.accumulator_bits is None else str(layer.accumulator_bits),
        "sums": "" if layer.sums is None else f"{layer.sums[0]:.3g}..{layer.sums[1]:.3g}",
        "zeros": "" if layer.sparsity is None else percent(layer.sparsity),
        "result": shortened(layer.shape),
    }


def keys(each: ReportedLayer) -> dict[str, float | None]:
    """What columns of numbers are sorted by."""
    layer = each.layer
    return {
        "bits": layer.weight_bits * layer.input_bits,
        "bytes": each.bytes or None,
        "MACs": layer.macs,
        "SQNR, dB": each.sqnr,
        "output, dB": each.output_sqnr,
        "noise": each.noise,
        "acc. bits": layer.accumulator_bits,
        "sums": None if layer.sums is None else layer.sums[1] - layer.sums[0],
        "zeros": layer.sparsity,
    }
