# SPDX-License-Identifier: Apache-2.0
"""Random small networks keep their numbers in every form, and their quantizers there and back."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from form_sessions import EVERY_LEVEL, LEVELS, check_once, run, session_options, sessions
from forms import FORMS, NATIVE, Form
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_graphs import RandomGraph, graphs

import anybit
import anybit.onnx
from anybit.onnx import read
from anybit.onnx.conversion import Conversion, convert
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnx.quantizers.quantizer import Quantizer, find_quantizers
from anybit.ops.grids import FloatGrid, Grid

# The same graphs each time: new ones belong in a search for faults, not between a change and main.
QUICK = settings(max_examples=25, deadline=None, derandomize=True)
MANY = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
_OPSET_OF_OTHER_AVERAGES = 19


def outputs(session: Any, graph: RandomGraph) -> np.ndarray:
    return run(session, {"x": graph.x})["y"]


@lru_cache(maxsize=1)
def folded(graph: RandomGraph) -> np.ndarray:
    """Return the results of the operators, with weights computed before."""
    return anybit.load(graph.proto).run(graph.x)["y"]


@lru_cache(maxsize=1)
def computed_in_session(graph: RandomGraph) -> np.ndarray:
    """Return the results with weights computed at run time, as by DequantizeLinear."""
    model = read(graph.proto)
    Normalize()(model)
    file = ir.to_proto(model).SerializeToString()
    chosen = session_options("as it stands", library_for=file)
    return outputs(onnxruntime.InferenceSession(file, chosen, ["CPUExecutionProvider"]), graph)


@lru_cache(maxsize=len(FORMS))
def converted_to(form: Form, graph: RandomGraph) -> Conversion:
    return convert(graph.proto, to=form)


def deviation_other_kernels(graph: RandomGraph, form: Form, converted: Conversion) -> bool:
    """Return whether ONNX Runtime may add inexact numbers in another order, by other kernels.

    From opset 19 on, it has another kernel for AveragePool. It packs constant weights, but not
    weights that the session computes. Weights without a native type become constants by conversion.
    """
    before, after = (node.opset_imports[""] for node in (read(graph.proto), converted.model.graph))
    averages = any(node.op_type == "AveragePool" for node in converted.model.graph)
    crossed = averages and before < _OPSET_OF_OTHER_AVERAGES <= after
    packed = form in NATIVE and any(step.action == "constant" for step in converted.steps)
    return not graph.exact and (crossed or packed)


def check_forms(graph: RandomGraph, forms: Sequence[Form] = FORMS) -> None:
    anybit.onnx.register()
    for form in forms:
        levels = ["as it stands"]
        if graph.exact:
            levels = [*(EVERY_LEVEL if form in NATIVE else LEVELS)]
        converted = converted_to(form, graph)
        assert converted.exact
        if deviation_other_kernels(graph, form, converted):
            continue
        file = check_once(form, converted).SerializeToString()
        weights_are_nodes = form in (*NATIVE, Form.QONNX)
        expected = computed_in_session(graph) if weights_are_nodes else folded(graph)
        for level in levels:
            for library, session in sessions(form, file, level):
                np.testing.assert_array_equal(
                    outputs(session, graph), expected, f"{form}, {level} {library}"
                )


@QUICK
@given(graphs())
def test_random_graphs_forms(graph: RandomGraph) -> None:
    check_forms(graph)
    np.testing.assert_array_equal(folded(graph), computed_in_session(graph))


@QUICK
@given(graphs(exact=False))
def test_random_graphs_forms_of_any_floats(graph: RandomGraph) -> None:
    check_forms(graph)


@QUICK
@given(graphs(fusible=True))
def test_random_graphs_fusible_with_quantizers_keep_values(graph: RandomGraph) -> None:
    check_forms(graph, NATIVE)


def values_of(model: ir.Model) -> dict[str, tuple[Any, ...]]:
    """Return the values of each quantizer, by the name of its output."""
    FoldConstants(operators=False)(model)
    ours = (quantizer for quantizer in find_quantizers(model) if quantizer.operator is not None)
    return {
        str(our.node.outputs[0].name): _values(our, our.grid)
        for our in ours
        if our.grid is not None
    }


def _values(quantizer: Quantizer, grid: Grid) -> tuple[Any, ...]:
    x = quantizer.x
    # Codes of constants do not tell how they were rounded.
    coding = "" if x is not None and is_constant(x) else str(grid.coding)
    scale = _spread(grid.scale, grid.scale)
    if isinstance(grid, FloatGrid):
        return scale, grid.format, coding
    return scale, _spread(grid.zeropt, grid.scale), grid.codes, coding


def _spread(array: np.ndarray, external: np.ndarray) -> tuple[Any, ...]:
    """Return the parameter in canonical shape, without leading axes of size 1."""
    full = np.broadcast_to(array, np.broadcast_shapes(array.shape, external.shape))
    shape = full.shape[next((i for i, size in enumerate(full.shape) if size != 1), full.ndim) :]
    return shape, tuple(np.ravel(full).tolist())


def check_round_trip(graph: RandomGraph, style: Form) -> None:
    anybit.onnx.register()
    there = converted_to(style, graph)
    native = {
        step.node.removesuffix("_node")
        for step in there.steps
        # What stands in a table comes back as the table.
        if "Linear" in step.action and "table" not in step.reason
    }
    back = convert(there.model, to="qonnx")
    assert back.exact
    actual = anybit.load(check_once(Form.QONNX, back)).run(graph.x)["y"]
    if not deviation_other_kernels(graph, style, back):
        np.testing.assert_array_equal(actual, folded(graph))
    if any(node.op_type == "Clip" for node in graph.proto.graph.node):
        return  # limits on the grid become part of the next quantizer
    original = read(graph.proto)
    Normalize()(original)
    before, after = values_of(original), values_of(back.model)
    for name in native:
        assert after[name] == before[name], name


@pytest.mark.parametrize("style", NATIVE)
@QUICK
@given(graph=graphs())
def test_random_graphs_round_trips(graph: RandomGraph, style: Form) -> None:
    check_round_trip(graph, style)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [{}, {"exact": False}, {"fusible": True}], ids=str)
@MANY
@given(data=st.data())
def test_random_graphs_many(data: st.DataObject, kind: dict[str, bool]) -> None:
    graph = data.draw(graphs(**kind))
    check_forms(graph)
    for style in NATIVE:
        check_round_trip(graph, style)
