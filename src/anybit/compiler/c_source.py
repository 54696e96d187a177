# SPDX-License-Identifier: Apache-2.0
"""C source of a compiled model: names of its layers, refusals, files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.analysis import RECURRENT_REASON
from anybit.compiler.backends.c.footprint import check_limits
from anybit.compiler.backends.c.ports import SourceNames
from anybit.compiler.backends.c.project import emit_project
from anybit.compiler.backends.c.refusals import describe_dynamic_scales
from anybit.compiler.backends.c.source import CSource, emit_c
from anybit.compiler.encode import Region
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.program import program as p
from anybit.compiler.report import Report
from anybit.errors import OptionError
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.quant_types.grids import TensorGrid
from anybit.text import format_count, join_names, shorten_name

IO = "floats", "codes"
LAYOUTS = "size", "speed"
MEMORIES = "flash", "ram"
_REGION = "IntegerNetwork"
_REMEDY = "use --io floats, or quantize the float model with --integer-only --outputs int8"


def make_source(
    region: Region,
    name: str,
    io: str,
    ports: tuple[Sequence[str], Sequence[str]],
    *,
    layout: str,
    sha256: str,
    limits: Mapping[str, int],
) -> CSource:
    """Return the C files of a region that is a whole model.

    Args:
        region: The region.
        name: Name of the network.
        io: One of IO.
        ports: Names of its inputs and of its outputs.
        layout: One of LAYOUTS.
        sha256: SHA-256 of the model's file.
        limits: The most bytes, by names in MEMORIES.

    Raises:
        ModelError: The network computes in floats, or is larger than a limit.
        OptionError: An option has an unsupported value.
    """
    if io not in IO:
        raise OptionError(f"io must be one of {', '.join(IO)}, got {io!r}")
    if layout not in LAYOUTS:
        raise OptionError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if unknown := sorted(set(limits) - set(MEMORIES)):
        raise OptionError(f"limits are of flash and ram, got {unknown[0]!r}")
    for memory, limit in limits.items():
        if limit < 0:
            raise OptionError(f"limits are 0 bytes or more, got {limit} for {memory}")
    labels = SourceNames(
        layers={number: layer.name for number, layer in region.layers.items()},
        inputs=ports[0],
        outputs=ports[1],
        scales={number: tensor.grid.scale for number, tensor in enumerate(region.tensors)},
        notes={number: _describe_layer(layer) for number, layer in region.layers.items()},
        sha256=sha256,
    )
    codes = io == "codes"
    source = emit_c(region.program, name, codes=codes, layout=layout, labels=labels)
    if codes:
        _check_scales(region, ports)
    totals = {"flash": source.constant_bytes, "ram": source.arena.size}
    check_limits(totals, source.layers, limits)
    counts = Counter(layer.guarantee.value for layer in region.layers.values() if layer.guarantee)
    guarantees = ", ".join(f"{count} {guarantee}" for guarantee, count in counts.items())
    files = emit_project(source, codes=codes, sha256=sha256, guarantees=guarantees)
    return replace(source, files=files)


def _check_scales(region: Region, ports: tuple[Sequence[str], Sequence[str]]) -> None:
    """Check that the codes of inputs and outputs stand for their numbers, by one scale.

    Raises:
        OptionError: They are codes of a function of an input, or an output is one of its codes.
    """
    for at in region.program.instructions:
        if isinstance(at, p.Quantize) and not _is_rounding(at, region.tensors[at.target].grid):
            raise OptionError(
                f"input {at.source} ({ports[0][at.source]}) has no quantizer of its own, but a "
                f"function of it has, so its codes have no scale; {_REMEDY}"
            )
        if isinstance(at, p.Dequantize):
            number = at.target - len(region.program.floats)
            if not np.array_equal(at.values, region.tensors[at.source].grid.values):
                raise OptionError(
                    f"output {number} ({ports[1][number]}) is a function of codes, and has no "
                    f"quantizer of its own; {_REMEDY}"
                )


def _is_rounding(at: p.Quantize, grid: TensorGrid) -> bool:
    """Return whether codes are those of a value next to the float."""
    values, signs = np.sort(grid.values), np.sign(grid.scale) == at.directions
    is_single = (
        not at.factors.size and not at.offsets.size and len(at.thresholds) == len(values) - 1
    )
    return bool(
        is_single
        and signs.all()
        and np.all(values[:-1] <= at.thresholds)
        and np.all(at.thresholds <= values[1:])
    )


def write_source(source: CSource, folder: Path) -> None:
    """Write the files to a folder, which is created if its parent exists."""
    folder.mkdir(exist_ok=True)
    for name, text in source.files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def explain_float_nodes(model: ir.Model, report: Report) -> str:
    """Return why a compiled model has no C source, and the remedy.

    The reason is its dynamic scales, or its nodes that stay float.
    """
    nodes = [node for node in model.graph if node.op_type != _REGION]
    nodes = [node for node in nodes if _computes_floats(node)] or nodes
    is_recurrent = any(has_trait(node, OpTrait.RECURRENT) for node in nodes)
    dynamic = [layer.name for layer in report.products if layer.layer.dynamic]
    if dynamic and not is_recurrent:
        return describe_dynamic_scales(dynamic)
    reasons = {
        layer.name: layer.reason
        for layer in report.layers
        if layer.guarantee is None and layer.reason != RECURRENT_REASON
    }
    names = [f"{shorten_name(get_label(node))} ({node.op_type})" for node in nodes]
    remedy = "quantize the model with --integer-only, or remove nodes at its ends"
    if report.is_integer_only:
        those = "it" if len(nodes) == 1 else "them"
        remedy = f"leave {those} out of the model, and compute {those} in the program that calls it"
    if is_recurrent:
        remedy = f"{RECURRENT_REASON}, and quantize that with --integer-only"
    if report.has_dynamic_sizes and report.unsized:
        remedy = "give the sizes of inputs with --shape"
    if not nodes:
        regions = format_count(len(report.programs), "region")
        return f"C code needs one network of integers, and the model is {regions}"
    first = next((f" ({name}: {reason})" for name, reason in reasons.items() if reason), "")
    return (
        "C code needs integers from the inputs of a model to its outputs; "
        f"{format_count(len(nodes), 'node')} stay{'s' if len(nodes) == 1 else ''} float: "
        f"{join_names(names)}{first}; {remedy}"
    )


def _computes_floats(node: ir.Node) -> bool:
    """Return whether a node is not a computation of sizes or indices."""
    return any(value.dtype in (ir.DataType.FLOAT, None) for value in node.outputs)


def _describe_layer(layer: CompiledLayer) -> str:
    info = layer.layer
    guarantee = "float" if layer.guarantee is None else layer.guarantee.value
    parts = (info.operator, info.shape, f"{info.weight_bits}-bit weights", guarantee)
    return f"{shorten_name(info.name)} of the model: {', '.join(filter(None, parts))}"
