# SPDX-License-Identifier: Apache-2.0
"""Trial of a model in plain ONNX Runtime: default options, no operator library.

ONNX Runtime replaces QuantizeLinear, DequantizeLinear and the nodes in between by integer
operators. Some of these cannot run, so the session fails; others round differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.fencing import Fencing, explain_rewrites
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize, read_scaling
from anybit.onnx.runtime import make_plain_session, make_session, run_session
from anybit.onnx.runtimes import find_oldest_onnxruntime
from anybit.text import escape_name

# Larger models are not tried, to save time and memory.
_MOST_BYTES = 2**28
_MOST_ELEMENTS = 2**26
_SMALL = 2**18
# The runtime's own time grows faster than this.
_MOST_NODES = 5000
_ENDLESS = {"Loop", "Scan"}

# Tolerance relative to the largest result: above the effect of the order of sums, below a step.
_SAME = 1e-5
_MAGNITUDES = (0.3, 3.0, 30.0)
_LARGEST = 1e30
# Steps of half an 8-bit code, if the magnitude is half the range; and the share of inputs on one.
_STEPS, _TIES = 255, 0.25

DISABLE = "session.disable_quant_qdq"
"""The session option that keeps all pairs as they are written."""

_NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
# Session settings to try, in increasing order of their effect.
_SETTINGS: tuple[tuple[str, dict[str, str], onnxruntime.GraphOptimizationLevel], ...] = (
    ("", {}, _ALL),
    (f"{DISABLE} = 1", {DISABLE: "1"}, _ALL),
    (f"{DISABLE} = 1 and no graph optimization", {DISABLE: "1"}, _NONE),
)


@dataclass(frozen=True)
class Trial:
    """The outcome of a trial.

    Attributes:
        problem: The error of plain ONNX Runtime; empty if there is none.
        setting: The session setting that avoids it; empty if there is none.
    """

    problem: str = ""
    setting: str = ""


def describe_requirements(fencing: Fencing, opset: int, trial: Trial | None = None) -> str:
    """Return the requirements of a fenced model of an opset, in one line."""
    needs = f"needs ONNX Runtime {find_oldest_onnxruntime(opset)} or newer"
    version = f"ONNX Runtime {onnxruntime.__version__}"
    if trial is not None and trial.problem:
        requested = f" with {trial.setting}" if trial.setting else ""
        return f"{needs}{requested}: with default options {version} {trial.problem}"
    if fencing.open:
        reason = ", ".join(explain_rewrites(fencing.open))
        return f"{needs} with {DISABLE} = 1: with default options values may differ: {reason}"
    tried = "" if trial is None else f" (tried with {version})"
    details = fencing.details()
    kept = f"{needs}; default options keep its values on x86 and ARM CPUs{tried}"
    return f"{kept}; {details}" if details else kept


@dataclass(frozen=True)
class ReferenceRun:
    """The inputs and outputs of a model in which every node is computed as written."""

    feeds: tuple[dict[str, Array], ...]
    expected: tuple[dict[str, Array], ...]

    @silence_onnx_logs()
    def find_problem(self, model: ir.Model) -> str:
        """Return the error of plain ONNX Runtime for a model with these results."""
        return self._find_problem(model, *_SETTINGS[0][1:])

    @silence_onnx_logs()
    def find_setting(self, model: ir.Model) -> str:
        """Return the setting that a session needs besides the defaults; empty if nothing helps."""
        for setting, entries, level in _SETTINGS[1:]:
            if not self._find_problem(model, entries, level):
                return setting
        return ""

    def _find_problem(
        self, model: ir.Model, entries: Mapping[str, str], level: onnxruntime.GraphOptimizationLevel
    ) -> str:
        try:
            session = make_plain_session(model, entries, level, threads=_choose_threads(model))
        except Exception:  # the runtime's errors have no common base
            return "does not load it"
        worst, changed = 0.0, ""
        for feeds, expected in zip(self.feeds, self.expected, strict=True):
            try:
                actual = run_session(session, feeds)
            except Exception:  # as above
                return "loads, but does not run it"
            for name in expected:
                difference = _measure_difference(actual[name], expected[name])
                worst, changed = max((worst, changed), (difference, name), key=itemgetter(0))
        if worst <= _SAME:
            return ""
        producers = {value.name: value.producer() for value in model.graph.outputs}
        node = producers[changed]
        source = "" if node is None else f" of {describe(node)}"
        where = f"output {escape_name(changed)}{source}"
        return f"changes {where} by up to {worst:.2g} of its largest number"


@silence_onnx_logs()
def compute_reference(model: ir.Model, typed: ir.Model | None = None) -> ReferenceRun | None:
    """Run a model as it is on numbers of several magnitudes.

    None if it is not tried: it is large, may run for long, needs other operators, or fails on
    random inputs with dynamic sizes of 1. `typed` is the same model with inferred shapes, in case
    the model does not declare them.
    """
    if not _is_harmless(model if typed is None else typed):
        return None
    magnitudes = _choose_magnitudes(model)
    feeds = [_make_feeds(model, seed, magnitude) for seed, magnitude in enumerate(magnitudes)]
    samples = tuple(sample for sample in feeds if sample is not None)
    if len(samples) < len(feeds):
        return None
    try:
        exact = make_session(model, threads=_choose_threads(model))
        return ReferenceRun(samples, tuple(run_session(exact, sample) for sample in samples))
    except Exception:  # the runtime's errors have no common base
        return None


def try_model(model: ir.Model, typed: ir.Model | None = None) -> Trial | None:
    """Load a model, compare its outputs with the reference, and search for a remedy.

    None if there is no reference.
    """
    reference = compute_reference(model, typed)
    if reference is None:
        return None
    problem = reference.find_problem(model)
    return Trial(problem, reference.find_setting(model)) if problem else Trial()


def _measure_difference(actual: Array, expected: Array) -> float:
    """Return the largest difference relative to the largest expected number."""
    if actual.shape != expected.shape:
        return np.inf
    if actual.dtype.kind == "b" or actual.size == 0:
        return float(not np.array_equal(actual, expected))
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    usual = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~usual], b[~usual], equal_nan=True):
        return np.inf
    if not usual.any():
        return 0.0
    largest = float(np.abs(b[usual]).max())
    with np.errstate(over="ignore"):
        return float(np.abs(a[usual] - b[usual]).max()) / (largest or 1.0)


def _choose_threads(model: ir.Model) -> int:
    """Return one for small models: a second one would only spin, for longer than the trial."""
    return int(_count_bytes(model) <= _SMALL)


def _count_bytes(model: ir.Model) -> int:
    constants = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in constants if tensor is not None)


def _is_harmless(model: ir.Model) -> bool:
    if _count_bytes(model) > _MOST_BYTES:
        return False
    nodes = list(model.graph.all_nodes())
    if len(nodes) > _MOST_NODES:
        return False
    for node in nodes:
        if node.domain or node.op_type in _ENDLESS:
            return False
        is_growing = has_trait(node, OpTrait.COMPUTED_SIZE)
        if is_growing and any(_count_elements(value) is None for value in node.outputs):
            return False
        if any((_count_elements(value) or 0) > _MOST_ELEMENTS for value in node.outputs):
            return False
    return True


def _count_elements(value: ir.Value) -> int | None:
    """Return the number of elements with dynamic sizes of 1; None if the rank is unknown."""
    if value.shape is None:
        return None
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else 1
    return count


def _choose_magnitudes(model: ir.Model) -> list[float]:
    """Return usual magnitudes of inputs, and those of the ranges of the model's quantizers."""
    ranges = sorted(filter(None, map(_find_range, model.graph.all_nodes())))
    own = {ranges[0], ranges[len(ranges) // 2], ranges[-1]} if ranges else set()
    return [*_MAGNITUDES, *sorted(own - set(_MAGNITUDES))]


def _find_range(node: ir.Node) -> float | None:
    """Return half the largest value of a quantizer of activations, so a few inputs exceed it."""
    if not is_quantize(node):
        return None
    try:
        scaling = read_scaling(node)
    except (Inexpressible, ModelError):
        return None
    largest = float(np.max(scaling.type.bound_values(scaling.layout))) / 2
    return largest if 0 < largest < _LARGEST else None


def _make_feeds(model: ir.Model, seed: int, magnitude: float) -> dict[str, Array] | None:
    """Create normal numbers, some of them at ties of 8-bit codes, and both values of conditions."""
    numbers = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if (
            value.dtype is None
            or value.shape is None
            or (_count_elements(value) or 0) > _MOST_ELEMENTS
        ):
            return None
        shape = [size if isinstance(size, int) and size >= 0 else 1 for size in value.shape]
        array: Array = magnitude * numbers.standard_normal(shape)
        step = magnitude / _STEPS
        array = np.where(numbers.random(shape) < _TIES, np.rint(array / step) * step, array)
        if value.dtype == ir.DataType.BOOL:
            array = np.full(shape, seed % 2)
        elif value.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16):
            array = np.zeros(shape)
        try:
            with np.errstate(over="ignore"):  # of float16
                feeds[str(value.name)] = np.asarray(array).astype(value.dtype.numpy())
        except (TypeError, ValueError):  # strings
            return None
    return feeds
