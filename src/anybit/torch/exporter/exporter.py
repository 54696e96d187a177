# SPDX-License-Identifier: Apache-2.0
"""Export of a module to an ONNX file."""

import inspect
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import OutputFixPass, RemoveUnusedOpsetsPass

from anybit.errors import ModelError
from anybit.onnx import read, save
from anybit.onnx.checks.checking import Finding, check
from anybit.onnx.passes import (
    DropMetadata,
    DropZeros,
    FixReshapes,
    FoldConstants,
    InferShapes,
    InlineFunctions,
    NameNodes,
    NameSizes,
    Normalize,
    SeparateNames,
    Simplify,
)
from anybit.onnx.preparation import apply_passes
from anybit.onnx.process import silence_onnx_logs
from anybit.torch.exporter.capture import (
    DynamicShapes,
    bind_shapes,
    capture,
    get_reason,
    make_batch_shapes,
    name_sizes,
    silence,
)
from anybit.torch.exporter.fold import fold_constants
from anybit.torch.exporter.names import NameAfterModules, name_outputs
from anybit.torch.exporter.options import export_options
from anybit.torch.exporter.refuse import RefuseUnknown, RefuseVersions
from anybit.torch.exporter.report import ExportResult
from anybit.torch.exporter.verify import compare_with_module, number_calls
from anybit.torch.modes import switch_to_eval, unwrap

# The version of PyTorch's translations; models are converted to others.
_OPSET = 18
_LARGEST_OPSET = 25


def export(
    module: torch.nn.Module,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_batch: bool = True,
    dynamic_shapes: DynamicShapes | Sequence[Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = _OPSET,
    verify: bool = True,
) -> ExportResult:
    """Write a module as an ONNX file of quantizers and standard operators.

    The module is captured in eval mode; afterwards its mode is restored. Quantizers of weights stay
    before the layers, with the weights as initializers. Other constants, such as scales, are
    computed by PyTorch, so that they have the same bits as in the module. Nodes and tensors are
    named after the parts of the module. The file has no source code, paths or metadata of its
    creation.

    Args:
        module: The module. It is not changed.
        args: Arguments of forward: a tensor, or a tuple.
        path: The file; tensors of more than 256 MiB in total are in `<name>.data` next to it. It
            appears when it is complete. None: no file is written.
        kwargs: Keyword arguments of forward.
        dynamic_batch: Whether the first axis is dynamic, with the name "batch", in tensors where it
            has the same size as in the first tensor.
        dynamic_shapes: Other dynamic sizes instead, by argument or in the order of the arguments,
            in the form of `torch.export.export`.
        input_names, output_names: Names in the model. By default inputs have the names of the
            arguments of forward. Outputs have the names of their keys if forward returns a dict,
            else "output", or "output_0", "output_1", ...
        opset: The version of the standard operators, 18 or more.
        verify: Whether to run the model with `anybit.load` on the arguments and to compare.

    Returns:
        The model and a report. If all sums are exact, as with power-of-two scales and few bits, all
        tensors are equal, element for element. Otherwise PyTorch and ONNX Runtime add in different
        orders, and quantized tensors may differ by a step.

    Raises:
        ModelError: The module cannot be captured or translated, changes its own buffers, draws
            random numbers, uses two versions of one operator, or has invalid parameters.
        OSError: The file cannot be written.
        Exception: Whatever forward raises for these arguments.
    """
    if not _OPSET <= opset <= _LARGEST_OPSET:
        raise ModelError(f"opset must be in {_OPSET} .. {_LARGEST_OPSET}, got {opset}")
    module = unwrap(module)
    args = args if isinstance(args, tuple) else (args,)
    bound = inspect.signature(module.forward).bind(*args, **(kwargs or {}))
    with switch_to_eval(module):
        outputs = module(*bound.args, **bound.kwargs)
        shapes = bind_shapes(bound, dynamic_shapes)
        if shapes is None and dynamic_batch:
            shapes = make_batch_shapes(bound)
        program = capture(module, bound, shapes)
        fold_constants(program)
        model = _translate(module, program, opset)
    number_calls(model)
    inputs = list(input_names or [str(value.name) for value in model.graph.inputs])
    named_outputs = list(output_names or name_outputs(outputs, inputs))
    _check_names(model, inputs, named_outputs)
    sizes = name_sizes(bound, shapes)
    apply_passes(model, model, *_make_passes(sizes, module.state_dict(), inputs, named_outputs))
    findings = _check(model, module)
    difference = compare_with_module(model, program, bound, outputs) if verify else None
    if path is None:
        _detach(model)
        return ExportResult(None, model, findings, difference)
    save(model, path)
    return ExportResult(Path(path), read(path), findings, difference)


@silence_onnx_logs()
def _translate(
    module: torch.nn.Module, program: torch.export.ExportedProgram, opset: int
) -> ir.Model:
    """Translate a captured module with PyTorch's exporter."""
    try:
        with silence():
            translated = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                opset_version=opset,
                verbose=False,
                **export_options(),
            )
    except Exception as error:  # the exporter has several classes, and does not wrap others
        raise ModelError(
            f"{type(module).__name__} cannot be translated: {get_reason(error)}; "
            "use other operations"
        ) from error
    model: ir.Model = translated.model
    if model.graph.opset_imports.get("", opset) != opset:
        raise ModelError(
            f"the model cannot be converted from opset {model.graph.opset_imports['']} to "
            f"{opset}; pass opset={model.graph.opset_imports['']}"
        )
    model.producer_name, model.producer_version = "anybit", _get_version()
    model.graph.name = type(module).__name__
    return model


def _get_version() -> str:
    import anybit

    return str(anybit.__version__)


def _make_passes(
    sizes: list[dict[int, str]], stored: Iterable[str], inputs: list[str], outputs: list[str]
) -> list[InPlacePass]:
    """Return the passes from the output of PyTorch's exporter to the final model."""
    return [
        RefuseVersions(),
        SeparateNames(),
        NameSizes(sizes),
        OutputFixPass(),  # separate values for outputs that are inputs or the same value
        InlineFunctions(),
        Normalize(),
        DropZeros(),
        Simplify(FoldConstants(operators=False), FixReshapes()),
        RefuseUnknown(),
        RemoveUnusedOpsetsPass(),
        DropMetadata(),
        NameAfterModules(set(stored), inputs, outputs),
        NameNodes(),
        Normalize(),
        InferShapes(),
    ]


def _check_names(model: ir.Model, inputs: list[str], outputs: list[str]) -> None:
    counts, names = (len(model.graph.inputs), len(model.graph.outputs)), [*inputs, *outputs]
    if (len(inputs), len(outputs)) != counts:
        raise ModelError(
            f"the model has {counts[0]} inputs and {counts[1]} outputs, got the names {names}"
        )
    if len(set(names)) != len(names):
        raise ModelError(f"names of inputs and outputs must differ, got {names}")


def _check(model: ir.Model, module: torch.nn.Module) -> tuple[Finding, ...]:
    findings = check(model)
    for finding in findings:
        if finding.severity == "error":
            raise ModelError(
                f"{type(module).__name__}, node {finding.node!r} ({finding.operator}): "
                f"{finding.problem}; {finding.remedy}"
            )
    return findings


def _detach(model: ir.Model) -> None:
    """Copy initializers that share memory with the module, which may be trained further."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)
