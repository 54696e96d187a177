# SPDX-License-Identifier: Apache-2.0
"""What can run a model: each runner gives every tensor that the nodes of the main graph make.

A runner takes a normalized model, which it does not change, and the inputs by name. Tensors that
it does not have, because it merged nodes, are missing from what it gives; so are those that are
no tensors of numbers.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit import compilation
from anybit.comparison.arrays import Array, is_number
from anybit.comparison.sides.qonnx import run_qonnx
from anybit.errors import AnybitError, ModelError, OptionError
from anybit.onnx import exact_session_options, read
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.operators.known import check_known
from anybit.onnx.passes import FoldConstants
from anybit.onnx.preparation import prepared, runnable
from anybit.onnx.runtime import make_session, reason, run_session

Arrays: TypeAlias = dict[str, Array]
Runner: TypeAlias = Callable[[ir.Model, Mapping[str, Array]], Arrays]

# The runtime's own, for what our sessions set otherwise.
_DEFAULTS = {"session.disable_quant_qdq": "0", "session.qdq_matmulnbits_accuracy_level": "4"}


def _run_anybit(model: ir.Model, feeds: Mapping[str, Array]) -> Arrays:
    """What `anybit.load` runs: constants are folded, and what they were folded to is given too."""
    exposed, folded = _folded(_exposed(model))
    if not exposed.graph.outputs:
        return folded
    return folded | run_session(make_session(prepared(exposed, exposed, normalized=True)), feeds)


def _run_onnxruntime(model: ir.Model, feeds: Mapping[str, Array]) -> Arrays:
    """Every node as it stands: no optimization, nothing folded."""
    exposed = _exposed(model)
    return run_session(make_session(runnable(exposed, exposed)), feeds)


def _run_optimized(model: ir.Model, feeds: Mapping[str, Array]) -> Arrays:
    """Constants are folded, and then the runtime's own defaults apply.

    Tensors that are outputs keep the runtime from merging the nodes around them. So it optimizes
    the model as it is and writes down the result, and the tensors are those of the result. The
    model's outputs are the session's own.
    """
    _, constants = _folded(_exposed(model))
    folded = model.clone()
    runnable(folded, folded)
    FoldConstants()(folded)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = exact_session_options().log_severity_level
    for key, value in _DEFAULTS.items():
        options.add_session_config_entry(key, value)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        session = make_session(folded, options)
        optimized = make_session(_exposed(read(path)))
    results = run_session(optimized, feeds) | run_session(session, feeds)
    wanted = {value.name for node in model.graph for value in node.outputs}
    return constants | {name: array for name, array in results.items() if name in wanted}


def _run_reference(model: ir.Model, feeds: Mapping[str, Array]) -> Arrays:
    """ONNX's own evaluator in Python, and our operators' readable references."""
    from onnx.reference import ReferenceEvaluator

    from anybit.onnx import reference_ops

    exposed = _exposed(model)
    runnable(exposed, exposed)
    evaluator = ReferenceEvaluator(ir.to_proto(exposed), new_ops=reference_ops())
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results = evaluator.run(None, dict(feeds))
    return {
        name: np.asarray(result)
        for name, result in zip(evaluator.output_names, results, strict=True)
        if isinstance(result, np.ndarray | np.generic)
    }


def _run_compiled(model: ir.Model, feeds: Mapping[str, Array]) -> Arrays:
    """What `anybit.compile` makes: integer regions, whose tensors of codes are given too."""
    return run_session(make_session(_exposed(compilation.exposed(model))), feeds)


RUNNERS: dict[str, Runner] = {
    "anybit": _run_anybit,
    "compiled": _run_compiled,
    "onnxruntime": _run_onnxruntime,
    "onnxruntime-optimized": _run_optimized,
    "reference": _run_reference,
    "qonnx": run_qonnx,
}
"""What can run a model, by name.

    anybit                  what `anybit.load` runs: constants folded, then node by node
    compiled                what `anybit.compile` makes: quantized layers on integers
    onnxruntime             ONNX Runtime, every node as it stands
    onnxruntime-optimized   constants folded, then ONNX Runtime's defaults, which merge nodes
    reference               the ONNX project's evaluator in Python
    qonnx                   QONNX's executor, if qonnx is installed

The first five know the operators of this package.
"""


def check_runner(name: str) -> None:
    """Raise OptionError for the name of no runner."""
    if name not in RUNNERS:
        raise OptionError(f"runner must be one of {', '.join(RUNNERS)}, got {name!r}")


def capture(runner: str, model: ir.Model, feeds: Mapping[str, Array], label: str) -> Arrays:
    """Every tensor that a runner computes.

    Raises:
        ModelError: The runner cannot run the model.
        OptionError: The runner is unknown.
        DependencyError: The package of the runner is missing.
    """
    check_runner(runner)
    if runner != "qonnx":  # which has operators of its own
        check_known(model, label)
    try:
        results = RUNNERS[runner](model, feeds)
    except AnybitError as error:
        raise type(error)(f"{label}: {error}") from error
    except Exception as error:  # the runtimes' exceptions have no common base
        # Messages of Python's own exceptions, a KeyError above all, say little by themselves.
        kind = f"{type(error).__name__}: " if type(error).__module__ == "builtins" else ""
        message = f"{label} cannot be run by {runner}: {kind}{reason(error)}"
        raise ModelError(message) from error
    return {name: array for name, array in results.items() if is_number(array)}


def _exposed(model: ir.Model) -> ir.Model:
    """A copy whose outputs are all that the nodes of its main graph make."""
    exposed = model.clone()
    outputs = exposed.graph.outputs
    present = set(outputs)
    made = (value for node in exposed.graph for value in node.outputs if value.name)
    outputs.extend(value for value in made if value not in present)
    return exposed


def _folded(model: ir.Model) -> tuple[ir.Model, Arrays]:
    """The model with constants folded, and the outputs that turned out to be constant.

    They are outputs no longer. The model is changed.
    """
    FoldConstants()(model)
    graph = model.graph
    constants = {value.name or "": value for value in graph.outputs if is_constant(value)}
    for name, value in constants.items():
        graph.outputs.remove(value)
        if not value.uses():  # a session refuses stored tensors that it has no use for
            del graph.initializers[name]
    return model, {name: array_of(value) for name, value in constants.items()}
