# SPDX-License-Identifier: Apache-2.0
"""Runners: runtimes that return the outputs of all nodes of the main graph.

A runner takes a normalized model, which it does not change, and the inputs by name. Tensors that
it does not compute, because it fuses nodes, are missing from the result.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.comparison.sides.qonnx import run_qonnx
from anybit.compiler import pipeline
from anybit.errors import AnybitError, ModelError, OptionError
from anybit.metrics.arrays import is_number
from anybit.onnx import exact_session_options, read
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.operators.known import check_known
from anybit.onnx.passes import FoldConstants
from anybit.onnx.preparation import make_runnable, prepare_in_place
from anybit.onnx.runtime import extract_reason, make_session, run_session

NamedArrays: TypeAlias = dict[str, Array]
Runner: TypeAlias = Callable[[ir.Model, Mapping[str, Array]], NamedArrays]

# Defaults of ONNX Runtime that the sessions of this package change.
_DEFAULTS = {"session.disable_quant_qdq": "0", "session.qdq_matmulnbits_accuracy_level": "4"}


def _run_anybit(model: ir.Model, feeds: Mapping[str, Array]) -> NamedArrays:
    """Run the graph as `anybit.load` does, and return folded constants, too."""
    exposed, folded = _fold_constants(_expose_outputs(model))
    if not exposed.graph.outputs:
        return folded
    return folded | run_session(
        make_session(prepare_in_place(exposed, exposed, normalized=True)), feeds
    )


def _run_onnxruntime(model: ir.Model, feeds: Mapping[str, Array]) -> NamedArrays:
    """Run the nodes without optimization or constant folding."""
    exposed = _expose_outputs(model)
    return run_session(make_session(make_runnable(exposed, exposed)), feeds)


def _run_optimized(model: ir.Model, feeds: Mapping[str, Array]) -> NamedArrays:
    """Fold constants, and run with the default options of ONNX Runtime.

    ONNX Runtime does not fuse nodes around graph outputs. So it optimizes the model as it is, and
    the tensors are those of the optimized file. The model's outputs come from the first session.
    """
    _, constants = _fold_constants(_expose_outputs(model))
    folded = model.clone()
    make_runnable(folded, folded)
    FoldConstants()(folded)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = exact_session_options().log_severity_level
    for key, value in _DEFAULTS.items():
        options.add_session_config_entry(key, value)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        session = make_session(folded, options)
        optimized = make_session(_expose_outputs(read(path)))
    results = run_session(optimized, feeds) | run_session(session, feeds)
    names = {value.name for node in model.graph for value in node.outputs}
    return constants | {name: array for name, array in results.items() if name in names}


def _run_reference(model: ir.Model, feeds: Mapping[str, Array]) -> NamedArrays:
    """Run the evaluator of the onnx package, with the reference code of our operators."""
    from onnx.reference import ReferenceEvaluator

    from anybit.onnx import reference_ops

    exposed = _expose_outputs(model)
    make_runnable(exposed, exposed)
    evaluator = ReferenceEvaluator(ir.to_proto(exposed), new_ops=reference_ops())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = evaluator.run(None, dict(feeds))
    return {
        name: np.asarray(result)
        for name, result in zip(evaluator.output_names, results, strict=True)
        if isinstance(result, np.ndarray | np.generic)
    }


def _run_compiled(model: ir.Model, feeds: Mapping[str, Array]) -> NamedArrays:
    """Run the result of `anybit.compile`, including the code tensors inside integer regions."""
    return run_session(make_session(_expose_outputs(pipeline.compile_exposed(model))), feeds)


RUNNERS: dict[str, Runner] = {
    "anybit": _run_anybit,
    "compiled": _run_compiled,
    "onnxruntime": _run_onnxruntime,
    "onnxruntime-optimized": _run_optimized,
    "reference": _run_reference,
    "qonnx": run_qonnx,
}
"""Runners by name.

    anybit                  as `anybit.load`: constants folded, then node by node
    compiled                as `anybit.compile`: quantized layers on integers
    onnxruntime             ONNX Runtime without optimization
    onnxruntime-optimized   constants folded, then ONNX Runtime with its default options
    reference               the Python evaluator of the onnx package
    qonnx                   the executor of QONNX, if qonnx is installed

The first five have the operators of this package.
"""


def check_runner(name: str) -> None:
    """Raise OptionError for an unknown runner."""
    if name not in RUNNERS:
        raise OptionError(f"runner must be one of {', '.join(RUNNERS)}, got {name!r}")


def capture(runner: str, model: ir.Model, feeds: Mapping[str, Array], label: str) -> NamedArrays:
    """Return all tensors that a runner computes.

    Raises:
        ModelError: The runner cannot run the model.
        OptionError: The runner is unknown.
        DependencyError: The package of the runner is missing.
    """
    check_runner(runner)
    if runner != "qonnx":  # it has operators of its own
        check_known(model, label)
    try:
        results = RUNNERS[runner](model, feeds)
    except AnybitError as error:
        raise type(error)(f"{label}: {error}") from error
    except Exception as error:  # the exceptions of runtimes have no common base
        # The message of a KeyError, for example, is unclear without its type.
        kind = f"{type(error).__name__}: " if type(error).__module__ == "builtins" else ""
        message = f"{label} cannot be run by {runner}: {kind}{extract_reason(error)}"
        raise ModelError(message) from error
    return {name: array for name, array in results.items() if is_number(array)}


def _expose_outputs(model: ir.Model) -> ir.Model:
    """Return a copy in which all results of nodes of the main graph are outputs."""
    exposed = model.clone()
    outputs = exposed.graph.outputs
    present = set(outputs)
    computed = (value for node in exposed.graph for value in node.outputs if value.name)
    outputs.extend(value for value in computed if value not in present)
    return exposed


def _fold_constants(model: ir.Model) -> tuple[ir.Model, NamedArrays]:
    """Fold constants in place, and return the model and its constant outputs.

    Constant outputs are removed from the graph.
    """
    FoldConstants()(model)
    graph = model.graph
    constants = {value.name or "": value for value in graph.outputs if is_constant(value)}
    for name, value in constants.items():
        graph.outputs.remove(value)
        if not value.uses():  # a session refuses unused initializers
            del graph.initializers[name]
    return model, {name: read_array(value) for name, value in constants.items()}
