# SPDX-License-Identifier: Apache-2.0
"""Random float networks: valid models, near in 16 bits, in 8 no worse than by the whole range."""

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
# How much the choice by a few samples may lose on others, and what it must win in the mean.
_NOISE, _GAIN = 4.5, 0.5
# Written by quantize, or folded by it.
_OURS = ("IntQuant", "Mul", "Reshape", "Add", "BatchNormalization", "Identity", "Constant")


@cache
def graph(seed: int) -> FloatGraph:
    return FloatGraph(seed)


def seeds(*slow: int) -> list[object]:
    return [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in slow)]


def kinds(proto: onnx.ModelProto) -> Counter[tuple[str, str]]:
    nodes = ((each.domain, each.op_type) for each in proto.graph.node)
    return Counter(each for each in nodes if each[1] not in _OURS)


def test_all_that_multiplies_is_among_them() -> None:
    nodes = (each for seed in (*QUICK, *SLOW) for each in graph(seed).proto.graph.node)
    assert {each.op_type for each in nodes} >= _MULTIPLIED


@pytest.mark.parametrize("seed", seeds(*SLOW))
def test_sixteen_bits_and_a_valid_model(seed: int) -> None:
    made = graph(seed)
    found = anybit.quantize(made.proto, made.rows(64, 1), weights="int16", activations="uint16")
    assert all(reason.startswith(_NOT_SUPPORTED) for reason in found.skipped.values()), (
        found.skipped
    )
    _, quantized = anybit.evaluate(made.proto, found, data=made.rows(64, 1)).models
    assert quantized.sqnr is not None
    assert quantized.sqnr > _NEAR
    proto = ir.to_proto(found.model)
    assert kinds(proto) == kinds(made.proto)
    assert not [each for each in anybit.check(found.model) if each.severity == "error"]
    foreign = [each for each in proto.graph.node if each.domain == "com.microsoft"]
    before = {each.name: each for each in made.proto.graph.node}
    for each in foreign:
        assert list(each.attribute) == list(before[each.name].attribute)


@pytest.mark.parametrize("several", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_eight_bits_beside_the_whole_range(several: tuple[int, ...]) -> None:
    gains = []
    for seed in several:
        made = graph(seed)
        rows = made.rows(256, 1)
        held = np.array([is_held_out(index) for index in range(len(rows))])
        models = (
            made.proto,
            anybit.quantize(made.proto, rows),
            quantize_naively(made.proto, rows[~held]),
        )
        _, ours, simple = anybit.evaluate(*models, data=rows[held]).models
        assert ours.sqnr is not None
        assert simple.sqnr is not None
        gains.append(ours.sqnr - simple.sqnr)
    assert min(gains) > -_NOISE
    assert np.mean(gains) > _GAIN
