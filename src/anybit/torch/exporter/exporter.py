# SPDX-License-Identifier: Apache-2.0
"""`export`: from a module to a file."""

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
from anybit.onnx.preparation import apply
from anybit.onnx.process import silence_onnx_logs
from anybit.torch.exporter.capture import (
    Shapes,
    batch_shapes,
    by_argument,
    capture,
    names_of_sizes,
    reason,
    silenced,
)
from anybit.torch.exporter.fold import fold_constants
from anybit.torch.exporter.names import NameAfterModules, names_of_outputs
from anybit.torch.exporter.options import export_options
from anybit.torch.exporter.refuse import RefuseUnknown, RefuseVersions
from anybit.torch.exporter.report import Exported
from anybit.torch.exporter.verify import number_calls, verified
from anybit.torch.modes import evaluating, unwrapped

# What PyTorch's own translations are written for; others are converted to and from.
_OPSET = 18
_LARGEST_OPSET = 25


def export(
    module: torch.nn.Module,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_batch: bool = True,
    dynamic_shapes: Shapes | Sequence[Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = _OPSET,
    verify: bool = True,
) -> Exported:
    """Write a module as an ONNX file of quantizers and standard operators.

    The module is captured in eval mode, and is afterwards in the mode that it was in. Quantizers
    of weights stay before the layers, with the weights as initializers; what depends on
    parameters and buffers only, scales above all, is computed now, by PyTorch, so that it has the
    bits that the module has. Nodes and tensors are called after the parts of the module. The
    file holds no source, no paths and no trace of how it was made.

    Args:
        module: The module. It is not changed.
        args: Arguments of forward: a tensor, or a tuple.
        path: The file; tensors of more than 256 MiB in all go to `<name>.data` beside it. It
            appears when it is complete. None writes none.
        kwargs: Keyword arguments of forward.
        dynamic_batch: Whether the first axis is free in every tensor in which it is as long as
            in the first tensor. It is called "batch".
        dynamic_shapes: Other free sizes instead, by argument or in the order of the arguments, as
            `torch.export.export` takes them.
        input_names, output_names: Names in the model. By default inputs are called like the
            arguments of forward. Outputs are called by their keys where forward gives a dict, and
            else "output", or "output_0", "output_1", ...
        opset: The version of the standard operators, 18 or more.
        verify: Whether to run the model with `anybit.load` on the arguments and to compare.

    Returns:
        The model, and what is known about it. Where every sum is exact, as with power-of-two
        scales and few bits, all tensors are equal, element for element. Elsewhere PyTorch and
        ONNX Runtime add in different orders, and quantized tensors may differ by a step.

    Raises:
        ModelError: The module cannot be captured or translated, changes its own buffers, draws
            random numbers, uses two versions of one operator, or holds what the operators refuse.
        OSError: The file cannot be written.
        Exception: Whatever forward raises for these arguments.
    """
    if not _OPSET <= opset <= _LARGEST_OPSET:
        raise ModelError(f"opset must be in {_OPSET} .. {_LARGEST_OPSET}, got {opset}")
    module = unwrapped(module)
    args = args if isinstance(args, tuple) else (args,)
    bound = inspect.signature(module.forward).bind(*args, **(kwargs or {}))
    with evaluating(module):
        outputs = module(*bound.args, **bound.kwargs)
        shapes = by_argument(bound, dynamic_shapes)
        if shapes is None and dynamic_batch:
            shapes = batch_shapes(bound)
        program = capture(module, bound, shapes)
        fold_constants(program)
        model = _translated(module, program, opset)
    number_calls(model)
    inputs = list(input_names or [str(value.name) for value in model.graph.inputs])
    named_outputs = list(output_names or names_of_outputs(outputs, inputs))
    _check_names(model, inputs, named_outputs)
    sizes = names_of_sizes(bound, shapes)
    apply(model, model, *_passes(sizes, module.state_dict(), inputs, named_outputs))
    findings = _checked(model, module)
    difference = verified(model, program, bound, outputs) if verify else None
    if path is None:
        _detach(model)
        return Exported(None, model, findings, difference)
    save(model, path)
    return Exported(Path(path), read(path), findings, difference)


@silence_onnx_logs()
def _translated(
    module: torch.nn.Module, program: torch.export.ExportedProgram, opset: int
) -> ir.Model:
    """What PyTorch's exporter makes of the captured module."""
    try:
        with silenced():
            translated = torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                opset_version=opset,
                verbose=False,
                **export_options(),
            )
    except Exception as error:  # the exporter has several classes, and lets others pass
        raise ModelError(
            f"{type(module).__name__} cannot be translated: {reason(error)}; "
            "write it with other operations"
        ) from error
    model: ir.Model = translated.model
    if model.graph.opset_imports.get("", opset) != opset:
        raise ModelError(
            f"the model cannot be converted from opset {model.graph.opset_imports['']} to "
            f"{opset}; pass opset={model.graph.opset_imports['']}"
        )
    model.producer_name, model.producer_version = "anybit", _version()
    model.graph.name = type(module).__name__
    return model


def _version() -> str:
    import anybit

    return str(anybit.__version__)


def _passes(
    sizes: list[dict[int, str]], stored: Iterable[str], inputs: list[str], outputs: list[str]
) -> list[InPlacePass]:
    """From what PyTorch's exporter writes to the model that is wanted."""
    return [
        RefuseVersions(),
        SeparateNames(),
        NameSizes(sizes),
        OutputFixPass(),  # an output of its own for each, be it an input or twice the same
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
    wanted, names = (len(model.graph.inputs), len(model.graph.outputs)), [*inputs, *outputs]
    if (len(inputs), len(outputs)) != wanted:
        raise ModelError(
            f"the model has {wanted[0]} inputs and {wanted[1]} outputs, got the names {names}"
        )
    if len(set(names)) != len(names):
        raise ModelError(f"names of inputs and outputs must differ, got {names}")


def _checked(model: ir.Model, module: torch.nn.Module) -> tuple[Finding, ...]:
    findings = check(model)
    for each in findings:
        if each.severity == "error":
            raise ModelError(
                f"{type(module).__name__}, node {each.node!r} ({each.operator}): {each.problem}; "
                f"{each.remedy}"
            )
    return findings


def _detach(model: ir.Model) -> None:
    """Copy what still shares memory with the module, so that training goes on without it."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().copy(), name=value.name)
