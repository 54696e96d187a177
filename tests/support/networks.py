# SPDX-License-Identifier: Apache-2.0
"""A Hypothesis strategy for quantized networks of every kind that can run as integers.

Hypothesis draws what the network is made of, and a seed for its numbers: weights, scales,
normalization. Sums are exact in float32, whatever the order of summation, where every scale that
comes before a product is a power of two: such networks are `powers`.
"""

import numpy as np
from hypothesis import strategies as st
from network_builder import CHANNELS, SIZES, Builder, Network, Tensor
from network_layers import FOOTS, HEADS, LAYERS
from onnx import TensorProto, helper
from small_models import DOMAIN


@st.composite
def networks(draw: st.DrawFn, powers: bool | None = None, qdq: bool | None = None) -> Network:
    """Draw up to four layers after a quantized input, at times with float layers around them.

    Args:
        powers: Whether all scales before products are powers of two.
        qdq: Whether quantizers are QuantizeLinear and DequantizeLinear.
    """
    seed = draw(st.integers(0, 2**32 - 1))
    powers = draw(st.booleans()) if powers is None else powers
    qdq = draw(st.integers(0, 3)) == 3 if qdq is None else qdq
    rank = draw(st.sampled_from([3, 3, 3, 2, 1]))
    sizes = [draw(st.sampled_from(SIZES)) for _ in range(rank - 1)]
    row = (draw(st.sampled_from(CHANNELS)), *sizes)
    builder = Builder(draw, np.random.default_rng(seed), powers, qdq, Tensor("x", row))
    if builder.chance(5):
        draw(st.sampled_from(HEADS))(builder)
    builder.last = builder.quantize(builder.last)
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from(LAYERS[len(builder.last.row)]))(builder)
    if builder.chance(3):
        draw(st.sampled_from(FOOTS))(builder)
    return _finished(builder, row, seed)


def _finished(builder: Builder, row: tuple[int, ...], seed: int) -> Network:
    make = helper.make_tensor_value_info
    builder.node("Identity", [builder.last.name])
    builder.nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        builder.nodes,
        "network",
        [make("x", TensorProto.FLOAT, ["n", *row])],
        [make("y", TensorProto.FLOAT, ["n", *builder.last.row])],
        builder.constants,
    )
    imports = [helper.make_opsetid("", 19), helper.make_opsetid(DOMAIN, 2)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
    steps = np.float32(1 / 8) if builder.steps is None else builder.steps
    return Network(proto, row, np.asarray(steps, np.float32), builder.last.codes, seed)


def inputs(network: Network, rows: int, finite: bool = True) -> np.ndarray:
    """Rows for x: ordinary numbers, ties of its quantizer, their neighbours, and the extremes."""
    random = np.random.default_rng([network.seed, rows])
    shape = (rows, *network.row)
    step = np.abs(np.broadcast_to(network.steps, shape).astype(np.float32))
    ties = (random.integers(-20, 20, shape) * step * np.float32(0.5)).astype(np.float32)
    away = random.choice(np.float32([-np.inf, np.inf]), shape)
    extremes = np.float32([0.0, -0.0, 1e-45, -1e-45, 1e30, -1e30, *([] if finite else ODD)])
    kinds = [
        random.normal(0, 1, shape),
        random.normal(0, 1, shape),
        ties,
        np.nextafter(ties, away),
        np.where(random.random(shape) < 0.9, ties, random.choice(extremes, shape)),
    ]
    kind = random.integers(len(kinds), size=(rows, *(1,) * len(network.row)))
    return np.choose(kind, kinds).astype(np.float32)


ODD = (np.inf, -np.inf, np.nan)
