# SPDX-License-Identifier: Apache-2.0
"""Models of a few nodes with faults to order, for the tests of checks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from small_models import DOMAIN, model, node

from anybit.onnx.checks.checking import Finding


def quantizer(scale: Any = 0.5, zeropt: Any = 0, bitwidth: Any = 4, **options: Any):
    """x -> IntQuant -> y, in the one spelling."""
    constants = {"scale": scale, "zeropt": zeropt, "bitwidth": bitwidth}
    return model([node("IntQuant", "x scale zeropt bitwidth", **options)], constants)


def minifloat(max_val: Any = 448, exponent: Any = 4, mantissa: Any = 3, **options: Any):
    constants = {"s": 1, "e": exponent, "m": mantissa, "b": 7, "max": max_val}
    return model([node("FloatQuant", "x s e m b max", **options)], constants)


def requantizer(scale: Any = 1, zeropt: Any = 0, out_scale: Any = 4):
    constants = {"s": scale, "z": zeropt, "i": 8, "os": out_scale, "o": 4}
    return model([node("Trunc", "x s z i os o")], constants, opsets={DOMAIN: 2})


def codes(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.code for finding in findings}


def changed(proto: onnx.ModelProto, change: Callable[[onnx.ModelProto], object]):
    change(proto)
    return proto


def product(scale: Any = 1.0, bits: int = 8, count: int = 4, bias: Any = None):
    """Quantized x times a quantized weight of ones, whose sums can be foreseen."""
    nodes = [
        node("IntQuant", "x step zero bits", "a", name="q"),
        node("IntQuant", "weight wscale zero bits", "w", name="qw"),
        node("Gemm", "a w bias" if bias is not None else "a w", domain="", name="sum"),
    ]
    constants = {
        "step": 0.5,
        "zero": 0,
        "bits": bits,
        "wscale": scale,
        "weight": np.full((count, 2), 2 ** (bits - 1) - 1, np.float32) * np.float32(scale),
    }
    if bias is not None:
        constants["bias"] = np.array([bias, 0], np.float32)
    return model(nodes, constants, inputs={"x": [1, count]})


def convolution(kind: str, shape: list[int], **options: Any):
    nodes = [
        node("IntQuant", "x one zero bits", "a", name="q"),
        node("Relu", "a", "r", domain="", name="relu"),
        node("IntQuant", "weight one zero bits", "w", name="qw"),
        node(kind, "r w", domain="", name="sum", **options),
    ]
    constants = {"one": 1, "zero": 0, "bits": 12, "weight": np.full(shape, 2047, np.float32)}
    return model(nodes, constants, inputs={"x": [1, 4, 5, 5]}, opsets={DOMAIN: 1})


def weighted(kind: str = "Quant", **options: Any):
    nodes = [
        node(kind, "x one zero bits", "a", name="q", **options),
        node(kind, "weight one zero bits", "w", name="qw"),
        node("MatMul", "a w", domain="", name="sum"),
    ]
    constants = {"one": 1, "zero": 0, "bits": 4, "weight": np.ones((4, 2), np.float32)}
    return model(nodes, constants)
