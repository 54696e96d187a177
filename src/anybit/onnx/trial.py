# SPDX-License-Identifier: Apache-2.0
"""What plain ONNX Runtime makes of a model: default options, no operators of ours.

It replaces QuantizeLinear, DequantizeLinear and what stands between by integer operators. Some it
cannot run, so that the session fails; others round differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.fencing import Fencing, explained
from anybit.onnx.graph.constants import Array
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_quantize, scaling_of
from anybit.onnx.runtime import make_session, plain_session, run_session
from anybit.onnx.runtimes import oldest_onnxruntime

# More is not tried: it would take long, or memory that the model itself does not ask for.
_MOST_BYTES = 2**28
_MOST_ELEMENTS = 2**26
_SMALL = 2**18
# The runtime's own time grows faster than this.
_MOST_NODES = 5000
_ENDLESS = {"Loop", "Scan"}
# The sizes of their results may be numbers in the file.
_GROWING = {"ConstantOfShape", "Expand", "Pad", "Range", "Resize", "Tile", "Upsample"}

# A share of the largest result: sums in another order stay below, a quantization step above.
_SAME = 1e-5
_MAGNITUDES = (0.3, 3.0, 30.0)
_LARGEST = 1e30
# Steps of half a code of 8 bits, of which half the range is the magnitude; and how many are on one.
_STEPS, _TIES = 255, 0.25

DISABLE = "session.disable_quant_qdq"
"""The session option that keeps all pairs as they are written."""

_NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
_ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
# What a session can be given, the least first.
_SETTINGS: tuple[tuple[str, dict[str, str], onnxruntime.GraphOptimizationLevel], ...] = (
    ("", {}, _ALL),
    (f"{DISABLE} = 1", {DISABLE: "1"}, _ALL),
    (f"{DISABLE} = 1 and no graph optimization", {DISABLE: "1"}, _NONE),
)


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes:
        problem: What plain ONNX Runtime does wrong; empty if nothing.
        setting: What a session must be given, so that it does not; empty if nothing helps.
    """

    problem: str = ""
    setting: str = ""


def remark(fencing: Fencing, opset: int, trial: Trial | None = None) -> str:
    """Return what a fenced model of an opset needs, in one line."""
    needs = f"needs ONNX Runtime {oldest_onnxruntime(opset)} or newer"
    version = f"ONNX Runtime {onnxruntime.__version__}"
    if trial is not None and trial.problem:
        asked = f" with {trial.setting}" if trial.setting else ""
        return f"{needs}{asked}: with default options {version} {trial.problem}"
    if fencing.open:
        why = ", ".join(explained(fencing.open))
        return f"{needs} with {DISABLE} = 1: with default options values may differ: {why}"
    tried = "" if trial is None else f" (tried with {version})"
    details = fencing.details()
    kept = f"{needs}; default options keep its values on x86 and ARM CPUs{tried}"
    return f"{kept}; {details}" if details else kept


@dataclass(frozen=True)
class Reference:
    """What a model computes where every node stands as it is written, and from what."""

    feeds: tuple[dict[str, Array], ...]
    wanted: tuple[dict[str, Array], ...]

    @silence_onnx_logs()
    def problem(self, model: ir.Model) -> str:
        """What plain ONNX Runtime does wrong with a model of these results; empty if nothing."""
        return self._problem(model, *_SETTINGS[0][1:])

    @silence_onnx_logs()
    def setting(self, model: ir.Model) -> str:
        """What a session needs besides the default options; empty if nothing helps."""
        for setting, entries, level in _SETTINGS[1:]:
            if not self._problem(model, entries, level):
                return setting
        return ""

    def _problem(
        self, model: ir.Model, entries: Mapping[str, str], level: onnxruntime.GraphOptimizationLevel
    ) -> str:
        try:
            session = plain_session(model, entries, level, threads=_threads(model))
        except Exception:  # the runtime's errors share no base
            return "does not load it"
        worst = 0.0
        for given, expected in zip(self.feeds, self.wanted, strict=True):
            try:
                actual = run_session(session, given)
            except Exception:  # as above
                return "loads, but does not run it"
            differences = (_difference(actual[name], expected[name]) for name in expected)
            worst = max(worst, *differences, 0.0)
        return f"changes its outputs by up to {worst:.2g} of the largest" if worst > _SAME else ""


@silence_onnx_logs()
def reference_of(model: ir.Model, typed: ir.Model | None = None) -> Reference | None:
    """Run a model as it is on numbers of several magnitudes.

    None where it is not tried: it is large, may run for long, needs other operators, or does not
    run on made-up inputs, whose free sizes are 1. `typed` is the same model with the shapes that
    follow from its inputs, where the model itself does not declare them.
    """
    if not _is_harmless(model if typed is None else typed):
        return None
    magnitudes = _magnitudes(model)
    feeds = [_feeds(model, seed, magnitude) for seed, magnitude in enumerate(magnitudes)]
    known = tuple(each for each in feeds if each is not None)
    if len(known) < len(feeds):
        return None
    try:
        exact = make_session(model, threads=_threads(model))
        return Reference(known, tuple(run_session(exact, each) for each in known))
    except Exception:  # the runtime's errors share no base; what it refuses, it says at run time
        return None


def tried(model: ir.Model, typed: ir.Model | None = None) -> Trial | None:
    """Load a model, compare what it gives with its reference, and look for what helps.

    None where `reference_of` gives none.
    """
    reference = reference_of(model, typed)
    if reference is None:
        return None
    problem = reference.problem(model)
    return Trial(problem, reference.setting(model)) if problem else Trial()


def _difference(actual: Array, expected: Array) -> float:
    """The largest one, as a share of the largest number expected."""
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


def _threads(model: ir.Model) -> int:
    """One for small models: a second would not work, and spin for longer than the trial takes."""
    return int(_bytes(model) <= _SMALL)


def _bytes(model: ir.Model) -> int:
    constants = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in constants if tensor is not None)


def _is_harmless(model: ir.Model) -> bool:
    if _bytes(model) > _MOST_BYTES:
        return False
    nodes = list(model.graph.all_nodes())
    if len(nodes) > _MOST_NODES:
        return False
    for node in nodes:
        if node.domain or node.op_type in _ENDLESS:
            return False
        if node.op_type in _GROWING and any(_elements(each) is None for each in node.outputs):
            return False
        if any((_elements(each) or 0) > _MOST_ELEMENTS for each in node.outputs):
            return False
    return True


def _elements(value: ir.Value) -> int | None:
    """How many elements it has with free sizes of 1; None if its rank is not known."""
    if value.shape is None:
        return None
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else 1
    return count


def _magnitudes(model: ir.Model) -> list[float]:
    """Of the inputs: a few usual ones, and those that the quantizers of the model are made for."""
    ranges = sorted(filter(None, map(_range_of, model.graph.all_nodes())))
    own = {ranges[0], ranges[len(ranges) // 2], ranges[-1]} if ranges else set()
    return [*_MAGNITUDES, *sorted(own - set(_MAGNITUDES))]


def _range_of(node: ir.Node) -> float | None:
    """Half the largest value of a quantizer of activations, so that a few inputs are beyond."""
    if not is_quantize(node):
        return None
    try:
        scaling = scaling_of(node)
    except (Inexpressible, ModelError):
        return None
    largest = float(np.max(scaling.type.largest(scaling.layout))) / 2
    return largest if 0 < largest < _LARGEST else None


def _feeds(model: ir.Model, seed: int, magnitude: float) -> dict[str, Array] | None:
    """Normal numbers, some of them rounded to ties of 8-bit codes; both values of conditions."""
    numbers = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.dtype is None or value.shape is None or (_elements(value) or 0) > _MOST_ELEMENTS:
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
