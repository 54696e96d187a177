# SPDX-License-Identifier: Apache-2.0
"""Sizes that a graph computes from its tensors are followed."""

import re

import numpy as np
import onnx
import pytest
from text_models import QUANTIZED, parse_lines, random_rows, random_weights

import anybit
from anybit.compiler.compiled import NetworkEngine

INTEGERS = {
    name: np.array(values, np.int64)
    for name, values in {
        "i0": [0],
        "i1": [1],
        "i2": [2],
        "n1": [-1],
        "first": 0,
        "second": 1,
        "flat": [20],
        "square": [0, 5, 2, 2],
        "tail": [5, 4],
        "whole": [-1, 20],
    }.items()
}
# Of p of shape [n, 5, 2, 2]: sizes t.
CHAINS = {
    "as PaddlePaddle exports it": """
        sizes = Shape(p)
        short = Cast(sizes) to=6
        n = Slice(short, i0, i1, i0, i1)
        long = Cast(n) to=7
        t = Concat(long, flat) axis=-1""",
    "the rest follows": """
        sizes = Shape(p)
        n = Gather(sizes, first)
        long = Unsqueeze(n, i0)
        t = Concat(long, n1) axis=0""",
    "the rest follows, in int32": """
        sizes = Shape(p)
        short = Cast(sizes) to=6
        n = Gather(short, i0)
        long = Cast(n) to=7
        t = Concat(long, n1) axis=0""",
    "as PyTorch flattens": """
        sizes = Shape(p)
        n = Gather(sizes, first)
        sizes_again = Shape(p)
        c = Gather(sizes_again, second)
        h = Shape(p) start=2
        hw = Mul(c, h)
        both = Slice(hw, i0, i1, i0)
        four = Mul(both, i2)
        long = Unsqueeze(n, i0)
        t = Concat(long, four) axis=0""",
    "of the input": """
        sizes = Shape(x)
        n = Slice(sizes, i0, i1)
        t = Concat(n, n1) axis=0""",
    "divided": """
        all_sizes = Shape(p)
        twice = Mul(all_sizes, i2)
        half = Div(twice, i2)
        n = Slice(half, i0, i1)
        t = Concat(n, flat) axis=0""",
}


def network(chain: str, reshape: str = "f = Reshape(p, t)") -> onnx.ModelProto:
    text = f"""
        q = Quant(x, s, z, b)
        a = Conv(q, w) strides=[2,2]
        p = Relu(a)
        {chain}
        {reshape}
        g = Quant(f, s, z, b)
        m = MatMul(g, v)
        y = Quant(m, one, z, b)"""
    mask = {"mask": np.ones(20, bool)}
    constants = {
        **QUANTIZED,
        **INTEGERS,
        **mask,
        "w": random_weights(5, 3, 2, 2),
        "v": random_weights(20, 3),
    }
    used = set(re.findall(r"\w+", text))
    names = {name: value for name, value in constants.items() if name in used}
    return parse_lines(text, names, (3, 5, 5))


@pytest.mark.parametrize("chain", CHAINS)
def test_row_shapes_follow_computed_sizes(chain: str) -> None:
    proto = network(CHAINS[chain])
    compiled = anybit.compile(proto)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    assert isinstance(compiled.engine, NetworkEngine)
    for count in (1, 7):
        x = random_rows(proto, count)
        np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert compiled.run(random_rows(proto, 1)[:0])["y"].shape == (0, 3)


def test_row_shapes_use_folded_constants() -> None:
    """Sizes are inferred between what is folded and what is followed."""
    proto = network(
        """
        same = Max(square, square)
        k = Reshape(p, same)
        sizes = Shape(p)
        n = Slice(sizes, i0, i1)
        t = Concat(n, n1) axis=0""",
        "f = Reshape(k, t)",
    )
    compiled, x = anybit.compile(proto), random_rows(proto, 7)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])


def test_row_shapes_ignore_declared_shapes() -> None:
    """Somebody declared a batch of 1 inside, and of the outputs, and freed that of the input."""
    proto = network(CHAINS["as PaddlePaddle exports it"])
    stale = onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [1, 5, 2, 2])
    proto.graph.value_info.append(stale)
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3])
    )
    x = random_rows(proto, 7)
    compiled = anybit.compile(proto)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert compiled.run(x)["y"].shape == (7, 3)


LEFT = {
    "two open sizes": (
        """
        sizes = Shape(p)
        n = Slice(sizes, i0, i1)
        single = Div(n, n)
        t = Concat(n, single, flat) axis=0""",
        "f = Reshape(p, t)",
        "node 'n7' (Reshape) computes [n, ?, 20], and more than one of these is dynamic",
    ),
    "of elements": (
        """
        largest = ReduceMax(p) keepdims=0
        none = Mul(largest, z)
        more = Cast(none) to=7
        t = Add(more, whole)""",
        "f = Reshape(p, t)",
        "node 'n7' (Reshape) takes it from node 'n5' (Cast), which computes it",
    ),
    "of an existing tensor": (
        "k = Reshape(p, whole)",
        "f = Compress(k, mask) axis=1",
        "shape inference fails at node 'n4' (Compress)",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_shape_diagnosis_names_node_and_remedy(case: str) -> None:
    chain, reshape, words = LEFT[case]
    proto = network(chain, reshape)
    compiled = anybit.compile(proto)
    *_, left = compiled.report.layers
    assert left.reason == (
        f"its shape is unknown at compile time: {words}; fixing the batch size may help: "
        "anybit clean --batch 1"
    )
    for count in (1, 3):
        x = random_rows(proto, count)
        np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])


def test_row_shapes_follow_fixed_rows() -> None:
    proto = network(*LEFT["two open sizes"][:2])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert anybit.compile(proto).report.coverage == "2 of 2 layers, 100 % of MACs"
