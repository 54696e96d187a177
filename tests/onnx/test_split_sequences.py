# SPDX-License-Identifier: Apache-2.0
"""Sequences of slices become Split or Gather, with the same values; others stay."""

from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.passes import SplitSequences

X = random(4, 6)


def sequence(
    split: Any, positions: list[int], sizes: tuple[int | str, ...] = (4, 6), **options: Any
) -> onnx.ModelProto:
    """Return a model whose outputs y0, y1, ... are slices of x."""
    opset = options.pop("opset", 18)
    names = [f"y{index}" for index in range(len(positions))]
    constants = {f"p{index}": np.array(at, np.int64) for index, at in enumerate(positions)}
    constants |= {} if split is None else {"split": np.array(split, np.int64)}
    made = node("SplitToSequence", "x" if split is None else "x split", "s", domain="", **options)
    readers = [
        node("SequenceAt", f"s p{index}", name, domain="", name=f"at_{index}")
        for index, name in enumerate(names)
    ]
    return model(
        [made, *readers], constants, inputs={"x": sizes}, outputs=names, opsets={"": opset}
    )


REPLACED = {
    "sizes": (sequence([1, 2, 3], [0, 1, -1], axis=1), ["Split"]),
    "sizes along the last axis": (sequence([2, 4], [-2, 1], axis=-1), ["Split"]),
    "sizes of an unknown extent": (sequence([1, 3], [1], ("n", 6)), ["Split"]),
    "sizes of 0": (sequence([0, 4], [0, 1]), ["Split"]),
    "sizes, without the axis": (sequence([1, 5], [1, 0], axis=1, keepdims=0), ["Split"]),
    "sizes as an attribute": (sequence([2, 4], [1, 0], axis=1, opset=11), ["Split"]),
    "one size": (sequence(2, [2, 0, -1], axis=1), ["Split", "Identity"]),
    "one size, and a rest": (sequence(4, [0, 1], axis=1, keepdims=1), ["Split"]),
    "one size larger than the axis": (sequence(9, [0]), ["Split"]),
    "single elements": (sequence(None, [0, -1], axis=1), ["Gather"] * 2),
    "single elements of an unknown extent": (sequence(None, [1], ("n", 6)), ["Gather"]),
    "single elements, without the axis": (
        sequence(None, [5, -2], axis=1, keepdims=0),
        ["Gather"] * 2,
    ),
}


@pytest.mark.parametrize("case", REPLACED)
def test_split_sequences_keeps_values(case: str) -> None:
    proto, expected = REPLACED[case]
    changed = apply_passes(proto, SplitSequences())
    assert sorted(kinds(changed)) == sorted(expected)
    assert_same_outputs(proto, changed, X)


KEPT = {
    "one size, and no axis": sequence(1, [0], axis=1, keepdims=0),
    "one size of an unknown extent": sequence(2, [0], ("n", 6)),
    "too many slices": sequence(1, [0], (4, 2**40), axis=1),
    "another sum": sequence([2, 3], [0], axis=1),
    "negative sizes": sequence([-2, 8], [0], axis=1),
    "a position out of range": sequence([2, 4], [2], axis=1),
    "a size of 0": sequence(0, [0], axis=1),
    "a list of positions": sequence([2, 4], [[0]], axis=1),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", KEPT)
def test_split_sequences_leaves_what_it_cannot_prove(case: str) -> None:
    changed = apply_passes(KEPT[case], SplitSequences())
    assert kinds(changed) == ["SplitToSequence", "SequenceAt"]


def test_split_sequences_keeps_the_sequence_for_other_readers() -> None:
    proto = sequence([2, 4], [1], axis=1)
    proto.graph.node.append(node("SequenceLength", "s", "n", domain=""))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.INT64, None))
    changed = apply_passes(proto, SplitSequences())
    assert sorted(kinds(changed)) == ["SequenceLength", "Split", "SplitToSequence"]
    assert_same_outputs(proto, changed, X)


def test_split_sequences_inside_a_branch() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[4, 6] x) => (float[4, n] y)
    <int64[2] sizes = {2, 4}, int64 first = {0}, bool yes = {1}> {
        s = SplitToSequence<axis: int = 1>(x, sizes)
        y = If (yes) <
            then_branch = a () => (float[4, 2] t) { t = SequenceAt(s, first) },
            else_branch = b () => (float[4, 6] e) { e = Neg(x) }>
    }"""
    proto = onnx.parser.parse_model(text)
    changed = apply_passes(proto, SplitSequences())
    assert kinds(changed) == ["Split", "If", "Identity", "Neg"]
    assert_same_outputs(proto, changed, X)
