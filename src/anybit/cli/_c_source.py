# SPDX-License-Identifier: Apache-2.0
"""C source from `anybit compile --to c`: its options, and the table of its layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from anybit.cli._columns import TableRows, show
from anybit.cli._console import get_stdout
from anybit.cli._report import write_model_report
from anybit.errors import OptionError
from anybit.text import format_amount, format_count

if TYPE_CHECKING:
    from anybit.compiler.backends.c.source import CSource
    from anybit.compiler.compiled import CompiledModel
    from anybit.inspection import ModelReport

_SIZE = re.compile(r"(\d{1,12})\s*(B|KB|KiB|MB|MiB)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20}
_NUMBERS = "MACs", "bits", "constants", "RAM"


@dataclass(frozen=True)
class COptions:
    """Options of C source.

    Attributes:
        folder: The folder to write to.
        name: Prefix of files and functions.
        io: Form of inputs and outputs.
        layout: Form of weights.
        limits: The most bytes of flash and ram.
    """

    folder: Path
    name: str
    io: str
    layout: str
    limits: Mapping[str, int]

    @property
    def paths(self) -> list[Path]:
        """The files that are written."""
        from anybit.compiler.backends.c.project import list_files

        return [self.folder / file for file in list_files(self.name)]


def check_c_options(
    output: Path,
    to: str | None,
    name: str | None,
    io: str | None,
    layout: str | None,
    limit: str | None,
    others: Mapping[str, object],
) -> COptions | None:
    """Return the options of C source; None without `--to`. Call it before any work.

    Args:
        output: Argument of `--output`.
        to, name, io, layout, limit: Arguments of the options.
        others: Options that an ONNX file alone has, and their arguments.

    Raises:
        OptionError: Options do not go together, or have unsupported values.
    """
    if to is None:
        options = {"--name": name, "--io": io, "--layout": layout, "--limit": limit}
        for option, value in options.items():
            if value is not None:
                raise OptionError(f"{option} is for C source: add --to c")
        return None
    if to != "c":
        raise OptionError(f"--to must be c, got {to!r}")
    for option, argument in others.items():
        if argument:
            raise OptionError(f"{option} is for the ONNX file: leave out --to c, or {option}")
    if output.exists() and not output.is_dir():
        raise OptionError(f"{output}: --output must be a folder with --to c")
    if not output.resolve().parent.is_dir():
        raise OptionError(f"{output}: --output must be in a folder that exists")
    from anybit.compiler.backends.c.identifiers import check_name
    from anybit.compiler.c_source import IO, LAYOUTS

    io = io or IO[0]
    if io not in IO:
        raise OptionError(f"--io must be {' or '.join(IO)}, got {io!r}")
    layout = layout or LAYOUTS[0]
    if layout not in LAYOUTS:
        raise OptionError(f"--layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    limits = {} if limit is None else parse_limits(limit)
    return COptions(output, check_name(name or "net"), io, layout, limits)


def parse_limits(text: str) -> dict[str, int]:
    """Return the bytes of limits such as "flash=64KB,ram=16KB".

    >>> parse_limits("flash=64KB,ram=2000")
    {'flash': 65536, 'ram': 2000}

    Raises:
        OptionError: The text has another form.
    """
    limits = {}
    for part in text.split(","):
        memory, _, size = part.partition("=")
        match = _SIZE.fullmatch(size.strip())
        name = memory.strip()
        if name not in ("flash", "ram") or name in limits or match is None:
            raise OptionError(f"--limit {text!r}: write flash=64KB, ram=16KB, or both with a comma")
        unit = (match[2] or "").lower()[:1]
        limits[name] = int(match[1]) * _UNITS[unit]
    return limits


def write_c_source(
    compiled: CompiledModel,
    options: COptions,
    report: ModelReport,
    reports: Sequence[Path],
    *,
    as_json: bool,
) -> None:
    """Write the C files and reports, and print the table of layers or JSON."""
    source = compiled.to_c(
        options.folder,
        name=options.name,
        io=options.io,
        layout=options.layout,
        limits=options.limits,
    )
    write_model_report(report, reports, printed=as_json, more={"c": _record(source)})
    if not as_json:
        _show(source, report, options.folder)


def _record(source: CSource) -> dict[str, Any]:
    return {
        "name": source.name,
        "files": list(source.files),
        "flash": source.constant_bytes,
        "ram": source.arena.size,
        "macs": source.macs,
        "layers": [asdict(layer) for layer in source.layers],
    }


def _show(source: CSource, report: ModelReport, folder: Path) -> None:
    from anybit.compiler.backends.c.footprint import format_kilobytes

    console = get_stdout()
    rows: TableRows = [
        {
            "layer": layer.label,
            "result": layer.shape,
            "MACs": format_amount(layer.macs) if layer.macs else "",
            "bits": str(layer.weight_bits) if layer.weight_bits else "-",
            "constants": format_kilobytes(layer.flash) if layer.flash else "",
            "RAM": format_kilobytes(layer.ram),
        }
        for layer in source.layers
    ]
    totals = {
        "layer": format_count(len(rows), "function"),
        "MACs": format_amount(source.macs),
        "constants": format_kilobytes(source.constant_bytes),
        "RAM": format_kilobytes(source.arena.size),
    }
    rows.append({heading: totals.get(heading, "") for heading in rows[0]})
    show(rows, ("result", "MACs"), ("layer",), _NUMBERS, console)
    lines = [
        f"flash: {format_kilobytes(source.constant_bytes)} of constants, plus code; "
        f"RAM: {format_kilobytes(source.arena.size)} of arena, plus stack",
        f"{_join_guarantees(report)}; written to {folder}: {', '.join(source.files)}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _join_guarantees(report: ModelReport) -> str:
    compilation = report.compilation
    counts: Iterable[tuple[Any, int]] = compilation.guarantees.items() if compilation else ()
    return ", ".join(
        f"{format_count(count, 'layer')} {guarantee.value}" for guarantee, count in counts
    )
