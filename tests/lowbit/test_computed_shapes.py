# SPDX-License-Identifier: Apache-2.0
"""Sizes that a graph computes itself, of those of its tensors, keep no layer from the integers."""

import re

import numpy as np
import onnx
import pytest
from written_models import QUANTIZED, made, rows, weights

import anybit
from anybit.compilation import NetworkEngine

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
        "tail": [5, 4],
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
        whole = Mul(all_sizes, i2)
        half = Div(whole, i2)
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
    constants = {**QUANTIZED, **INTEGERS, "w": weights(5, 3, 2, 2), "v": weights(20, 3)}
    used = set(re.findall(r"\w+", text))
    known = {name: value for name, value in constants.items() if name in used}
    return made(text, known, (3, 5, 5))


@pytest.mark.parametrize("chain", CHAINS)
def test_sizes_that_a_graph_computes_are_followed(chain: str) -> None:
    proto = network(CHAINS[chain])
    compiled = anybit.compile(proto)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    assert isinstance(compiled.engine, NetworkEngine)
    for count in (1, 7):
        x = rows(proto, count)
        np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert compiled.run(rows(proto, 1)[:0])["y"].shape == (0, 3)


def test_a_declared_shape_is_not_believed() -> None:
    """Somebody declared a batch of 1 inside, and of the outputs, and freed that of the input."""
    proto = network(CHAINS["as PaddlePaddle exports it"])
    stale = onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, [1, 5, 2, 2])
    proto.graph.value_info.append(stale)
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3])
    )
    x = rows(proto, 7)
    compiled = anybit.compile(proto)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert compiled.run(x)["y"].shape == (7, 3)

