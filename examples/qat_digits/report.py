# SPDX-License-Identifier: Apache-2.0
"""Table and figure of docs/qat_digits.md."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from qat_digits import File, Outcome, Variant

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE, PICTURE = DOCS / "qat_digits.md", DOCS / "images" / "qat_digits.svg"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

# Accuracy in percent; sizes in KiB.
HEADINGS = ("format", "accuracy", "range", "vs. PyTorch", "QONNX", "QDQ", "constants")

_BLUE, _ORANGE, _INK, _FAINT = "#0969da", "#bc4c00", "#1f2328", "#c9d1d9"


@dataclass(frozen=True)
class Line:
    """Accuracies of a variant by seed, and the file of the first seed."""

    variant: "Variant"
    accuracies: tuple[float, ...]
    file: "File"

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEADINGS."""
        percent = [100 * accuracy for accuracy in self.accuracies]
        spread = f" ± {stdev(percent):.1f}" if len(percent) > 1 else ""
        sizes = (self.file.qonnx, self.file.qdq, self.file.constants)
        return (
            self.variant.name,
            f"{mean(percent):.1f}{spread}",
            f"{min(percent):.1f}-{max(percent):.1f}",
            _agreement(self.file),
            *(f"{size / 1024:.1f}" for size in sizes),
        )


def _agreement(file: "File") -> str:
    if file.equal:
        return "equal"
    steps = f", {file.steps:.0f} steps" if file.steps else ""
    return f"within {file.tolerance:g}{steps}"


def lines(outcomes: Iterable["Outcome"]) -> list[Line]:
    """Return one line per variant."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.variant.name, []).append(outcome)
    result = []
    for group in grouped.values():
        file = next(outcome.file for outcome in group if outcome.file is not None)
        accuracies = tuple(outcome.accuracy for outcome in group)
        result.append(Line(group[0].variant, accuracies, file))
    return result


def table(lines: Iterable[Line]) -> Table:
    """Return the table for the terminal."""
    caption = "accuracy in %: mean and standard deviation over seeds; files in KiB"
    result = Table(box=SIMPLE_HEAD, caption=caption)
    for heading in HEADINGS:
        right = heading in HEADINGS[1:3] + HEADINGS[4:]
        result.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for line in lines:
        result.add_row(*line.cells)
    return result


def markdown(lines: Iterable[Line]) -> str:
    """Return the table as Markdown, with the specs of weights and activations."""
    rows = [[*HEADINGS[:1], "weights", "activations", *HEADINGS[1:]]]
    for line in lines:
        name, *others = line.cells
        specs = line.variant.weight or "-", line.variant.activation or "-"
        rows.append([name, *specs, *others])
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def write(lines: list[Line]) -> None:
    """Update the table of the page, between its markers, and the figure."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE}: no markers {BEGIN} and {END}; add them where the table goes")
    text = f"{before}{BEGIN}\n{markdown(lines)}\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8", newline="\n")
    draw(lines, PICTURE)


def draw(lines: list[Line], path: Path) -> None:
    """Draw accuracy against bits, and file sizes, as a reproducible SVG."""
    settings = {
        "svg.hashsalt": "qat_digits",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": _INK,
        "axes.edgecolor": _FAINT,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_accuracy(left, lines)
        _draw_sizes(right, lines)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _draw_accuracy(axes: Axes, lines: list[Line]) -> None:
    for line in lines:
        floating = line.variant.name.startswith(("fp", "float"))
        # Formats with the same number of bits are drawn side by side.
        bits = line.variant.bits * (1.08 if floating else 1 / 1.08)
        colour = _ORANGE if floating else _BLUE
        percent = [100 * accuracy for accuracy in line.accuracies]
        axes.plot([bits] * len(percent), percent, "o", color=colour, alpha=0.35, ms=4, mew=0)
        axes.plot(bits, mean(percent), "_", color=colour, ms=14, mew=2.5)
        axes.annotate(
            line.variant.name,
            (bits, min(percent) if floating else max(percent)),
            (0, -7 if floating else 5),
            textcoords="offset points",
            ha="left" if floating else "center",
            va="top" if floating else "bottom",
            color=colour,
            fontsize=9,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 32], ["1", "2", "4", "8", "32"])
    axes.set_xlim(0.7, 56)
    axes.set_ylim(None, 100.5)
    axes.set_xlabel("bits of weights and activations")
    axes.set_title("correct test images, %", loc="left", fontsize=10)
    axes.grid(axis="y", color=_FAINT, linewidth=0.5)


def _draw_sizes(axes: Axes, lines: list[Line]) -> None:
    rows = range(len(lines))
    for offset, colour, label, sizes in (
        (-0.19, _FAINT, "QONNX: float weights", [line.file.qonnx for line in lines]),
        (0.19, _BLUE, "after convert --to qdq", [line.file.qdq for line in lines]),
    ):
        kilobytes = [size / 1024 for size in sizes]
        bars = axes.barh([row + offset for row in rows], kilobytes, 0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks(rows, [line.variant.name for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title("file size, KiB", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
