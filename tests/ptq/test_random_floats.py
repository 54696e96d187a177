# SPDX-License-Identifier: Apache-2.0
"""Random float networks: valid models, accurate in 16 bits, and in 8 better than naive ranges."""

from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from naive_quantization import quantize_naively
from random_floats import FloatGraph

import anybit
from anybit.data.splits import is_held_out

QUICK, SLOW = (3, 11, 27), (8, 23, 31, 34, 38, 40, 49, 58)
_MULTIPLIED = {"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "FusedMatMul"}
_NOT_SUPPORTED = "it has weights, but the operator "
_NEAR = 70
# Loss in dB allowed for a network, since scales follow from few samples; least mean gain in dB.
_NOISE, _GAIN = 4.5, 0.5
# Operators that quantize inserts or folds.
_OURS = ("IntQuant", "Mul", "Reshape", "Add", "BatchNormalization", "Identity", "Constant")


@cache
def make_graph(seed: int) -> FloatGraph:
    return FloatGraph(seed)


def mark_slow_seeds(*slow: int) -> list[object]:
    return [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in slow)]


def count_operators(proto: onnx.ModelProto) -> Counter[tuple[str, str]]:
    nodes = ((operator.domain, operator.op_type) for operator in proto.graph.node)
    return Counter(operator for operator in nodes if operator[1] not in _OURS)


def test_random_floats_have_all_matmul_like_operators() -> None:
    nodes = (op for seed in (*QUICK, *SLOW) for op in make_graph(seed).proto.graph.node)
    assert {op.op_type for op in nodes} >= _MULTIPLIED


@pytest.mark.parametrize("seed", mark_slow_seeds(*SLOW))
def test_quantize_random_floats_to_16_bits_is_accurate(seed: int) -> None:
    network = make_graph(seed)
    result = anybit.quantize(
        network.proto, network.rows(64, 1), weights="int16", activations="uint16"
    )
    assert all(reason.startswith(_NOT_SUPPORTED) for reason in result.skipped.values()), (
        result.skipped
    )
    _, quantized = anybit.evaluate(network.proto, result, data=network.rows(64, 1)).models
    assert quantized.sqnr is not None
    assert quantized.sqnr > _NEAR
    proto = ir.to_proto(result.model)
    assert count_operators(proto) == count_operators(network.proto)
    assert not [fault for fault in anybit.check(result.model) if fault.severity == "error"]
    foreign = [op for op in proto.graph.node if op.domain == "com.microsoft"]
    originals = {op.name: op for op in network.proto.graph.node}
    for op in foreign:
        assert list(op.attribute) == list(originals[op.name].attribute)


@pytest.mark.parametrize("several", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_quantize_random_floats_to_8_bits_beats_whole_ranges(several: tuple[int, ...]) -> None:
    gains = []
    for seed in several:
        network = make_graph(seed)
        rows = network.rows(256, 1)
        held_out = np.array([is_held_out(index) for index in range(len(rows))])
        models = (
            network.proto,
            anybit.quantize(network.proto, rows),
            quantize_naively(network.proto, rows[~held_out]),
        )
        _, ours, naive = anybit.evaluate(*models, data=rows[held_out]).models
        assert ours.sqnr is not None
        assert naive.sqnr is not None
        gains.append(ours.sqnr - naive.sqnr)
    assert min(gains) > -_NOISE
    assert np.mean(gains) > _GAIN
