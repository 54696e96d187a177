# SPDX-License-Identifier: Apache-2.0
"""Numbers that tell blocks apart, and networks whose weights are cut in all ways there are."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from pass_checks import random
from small_models import model, node

WORDS = (
    *("mxfp8", "mxfp6 even", "mxfp4 ceil", "mxint8 floor", "nvfp4", "nvfp4 absmax"),
    *("int4 per-block 32", "uint4 per-block 16", "fp4_e2m1 per-block 8 power-of-two"),
)
MULTIPLYING = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def layers_of_all_kinds(opset: int = 17) -> onnx.ModelProto:
    """Lengths that blocks divide, and others; axes that lie in front, and behind."""
    constants = {
        "w1": random(24, 3, 3, 3, seed=1),
        "w2": random(24, 1, 3, 3, seed=2),
        "w3": random(40, 24, 1, 1, seed=3),
        "w4": random(40, 6, 2, 2, seed=4),
        "w5": random(96, 7, seed=5),
        "w6": random(33, 7, seed=6),
        "zero": np.zeros(33, np.float32),
    }
    nodes = [
        node("Conv", "x w1", "a", domain="", name="first"),
        node("Conv", "a w2", "b", domain="", name="depthwise", group=24),
        node("Conv", "b w3", "c", domain="", name="pointwise"),
        node("ConvTranspose", "c w4", "d", domain="", name="up", strides=[2, 2]),
        node("Flatten", "d", "e", domain="", name="flat"),
        node("MatMul", "e w5", "f", domain="", name="middle"),
        node("Gemm", "f w6 zero", "y", domain="", name="head", transB=1),
    ]
    return model(nodes, constants, inputs={"x": ["rows", 3, 6, 6]}, opsets={"": opset})


def output_weights(quantized: ir.Model) -> ir.Model:
    """Return a model whose outputs are the weights of another's layers, named after the layers."""
    bare = quantized.clone()
    weights = {str(node.name): node.inputs[1] for node in bare.graph if node.op_type in MULTIPLYING}
    for name, value in weights.items():
        value.name = name
    bare.graph.outputs[:] = weights.values()
    RemoveUnusedNodesPass()(bare)
    bare.graph.inputs.clear()
    return bare


def edge_case_blocks(size: int) -> np.ndarray:
    """Blocks of all magnitudes, with ties, zeros, subnormals, and what is next to overflow."""
    random = np.random.default_rng(0)
    blocks = [random.standard_normal(size) * 2.0**exponent for exponent in (-3, 0, 5, -40)]
    # Multiples of small powers of two lie on values, and half way between two.
    for step in (2.0**-6, 2.0**-3, 0.25, 0.5):
        blocks.append(random.integers(-64, 65, size) * step)
    blocks.append(np.zeros(size))
    blocks.append(np.where(np.arange(size) == 3, 1.0, 0.0))
    # Largest magnitudes around those for which rules take another power of two.
    for reach in (1.0, 1.5, 1.75, 1.875, 1.984375, 1.9921875, 1.99609375, 2.0):
        for near in (np.nextafter(np.float32(reach), np.float32(0)), reach):
            block = random.uniform(-1, 1, size)
            blocks.append(np.append(block[1:], near))
    for exponent in (-149, -140, -130, -127, -126, -120, -112):
        blocks.append(random.integers(-40, 41, size) * 2.0 ** max(exponent - 5, -149))
    top = float(np.finfo(np.float32).max)
    blocks += [random.uniform(-1, 1, size) * top, np.full(size, -top)]
    with np.errstate(under="ignore"):
        return np.stack(blocks).astype(np.float32)
