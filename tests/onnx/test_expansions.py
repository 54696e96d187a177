# SPDX-License-Identifier: Apache-2.0
"""Nodes that say the same are traced once, and each has constants of its own."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import kinds, model, node

import anybit
from anybit.onnx.expansion import calls
from anybit.onnx.passes import InferShapes, Lower, Normalize


def chain(kind: str, parameters: list[tuple[Any, ...]], **options: Any) -> onnx.ModelProto:
    constants, nodes, x = {}, [], "x"
    for at, values in enumerate(parameters):
        names = [f"p{at}_{index}" for index in range(len(values))]
        constants |= dict(zip(names, values, strict=True))
        result = f"v{at}"
        nodes.append(node(kind, " ".join([x, *names]), result, name=f"n{at}", **options))
        x = result
    nodes.append(node("Identity", x, "y", domain=""))
    return model(nodes, constants, inputs={"x": [2, 4]})


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list that collects names of traced nodes."""
    names = []
    original = calls._expand

    def expansion(node: ir.Node, *others: Any) -> calls.Expansion:
        names.append(str(node.name))
        return original(node, *others)

    monkeypatch.setattr(calls, "_expand", expansion)
    return names


def typed(proto: onnx.ModelProto) -> ir.Model:
    made = ir.from_proto(proto)
    Normalize()(made)
    InferShapes()(made)
    return made


def lowered(proto: onnx.ModelProto) -> ir.Model:
    made = typed(proto)
    Lower()(made)
    x = np.float32(np.random.default_rng(0).normal(0, 3, (2, 4)))
    expected = anybit.load(proto).run(x)["y"]
    np.testing.assert_array_equal(anybit.load(ir.to_proto(made)).run(x)["y"], expected)
    return made


def test_expansions_scales_may_differ(traced: list[str]) -> None:
    made = lowered(chain("IntQuant", [(0.5, 0, 8), (0.25, 0, 8), (0.125, 0, 8), (0.5, 0, 8)]))
    assert traced == ["n0"]
    divided = [item for item in made.graph if item.op_type == "Div"]
    scales = [float(item.inputs[1].const_value.numpy()) for item in divided]
    assert scales == [0.5, 0.25, 0.125, 0.5]


def test_expansions_zero_points_may_differ_and_widths_may_not(traced: list[str]) -> None:
    lowered(chain("IntQuant", [(0.5, 3, 8), (0.25, -7, 8), (0.125, 5, 6)]))
    assert traced == ["n0", "n2"]


def test_expansions_neutral_numbers_are_left_out_as_before(traced: list[str]) -> None:
    made = lowered(chain("IntQuant", [(0.5, 3, 8), (1, 3, 8), (0.5, 0, 8), (0.25, 3, 8)]))
    assert traced == ["n0", "n1", "n2"]
    assert kinds(made).count("Div") == 3
    assert kinds(made).count("Add") == 3


def test_expansions_shapes_and_types_make_a_difference(traced: list[str]) -> None:
    per_channel = np.float32([0.5, 0.25, 0.5, 0.25])
    lowered(
        chain("IntQuant", [(0.5, 0, 8), (per_channel, 0, 8), (np.float64(0.3) * np.ones(1), 0, 8)])
    )
    assert set(traced) == {"n0", "n1", "n2"}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("FloatQuant", [(0.5, 4, 3, 7, 240.0), (0.3, 4, 3, 7, 240.0), (0.3, 4, 3, 7, 200.0)]),
        ("BipolarQuant", [(0.5,), (0.25,), (1,)]),
        ("Trunc", [(0.5, 0, 8, 4), (0.25, 0, 8, 4), (1, 0, 8, 4), (0.5, 0, 8, 6)]),
    ],
)
def test_expansions_every_operator(kind: str, parameters: list[tuple[Any, ...]]) -> None:
    lowered(chain(kind, parameters))


def test_expansions_large_parameters_are_not_kept(traced: list[str]) -> None:
    scale = np.full((2, 4), 0.5, np.float32)
    expansions = calls.Expansions()
    made = typed(chain("IntQuant", [(scale, 0, 8), (scale, 0, 8)]))
    operator = next(
        operator for operator in anybit.ops.OPERATORS if operator.onnx_name == "IntQuant"
    )
    first, second, _ = made.graph
    assert expansions.expand(first, operator) is expansions.expand(second, operator)
    big = np.full((1, 500), 0.5, np.float32)
    for element in (first, second):
        element.inputs[1].const_value = ir.tensor(big)
    traced.clear()
    with pytest.raises(anybit.errors.ModelError, match="does not broadcast"):
        expansions.expand(first, operator)
    assert traced == ["n0"]
