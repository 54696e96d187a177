# SPDX-License-Identifier: Apache-2.0
"""Names that nothing else has."""

import onnx_ir as ir
from small_models import model, node

from anybit.onnx import read
from anybit.onnx.graph.names import NameGenerator, describe, get_label, make_name_generator


def test_names_wish_is_kept_or_numbered() -> None:
    unique = NameGenerator(["a", "b_1", None])
    assert [unique(wish) for wish in ("b", "b", "b", "a", "a_1")] == [
        *("b", "b_2", "b_3", "a_1", "a_1_1"),
    ]


def test_names_numbers_are_not_counted_again() -> None:
    """Take linear time for as many equal names as there may be nodes."""
    looked = []

    class Taken(set):  # type: ignore[type-arg]
        def __contains__(self, name: object) -> bool:
            looked.append(name)
            return super().__contains__(name)

    unique = NameGenerator()
    unique._taken = Taken()
    assert len({unique("x") for _ in range(100)}) == 100
    assert len(looked) < 300


def test_names_of_a_model() -> None:
    nodes = [node("Relu", "x", "a", domain="", name="n"), node("Relu", "a", domain="", name="m")]
    unique = make_name_generator(read(model(nodes, {"w": 1.0})))
    for name in ("x", "a", "y", "w", "n", "m"):
        assert unique(name) == f"{name}_1"


def test_names_how_a_node_is_called() -> None:
    x = ir.Value(name="x")
    assert describe(ir.node("Relu", [x], name="r")) == "node 'r' (Relu)"
    unnamed = ir.node("Relu", [x])
    unnamed.outputs[0].name = "y"
    assert get_label(unnamed) == "y"
