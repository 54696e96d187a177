# SPDX-License-Identifier: Apache-2.0
"""A small sentence encoder: one block of attention and GELU on tokens, with dynamic sizes."""

import numpy as np
import onnx
from onnx import numpy_helper

VOCABULARY, WIDTH = 100, 16

_TEXT = """<ir_version: 9, opset_import: ["": 20]>
encoder (int64[rows,tokens] input_ids,
  int64[rows,tokens] attention_mask) => (float[rows,16] sentence)
<float one = {1.0}, float half = {0.5}, float root = {1.4142135}, float far = {-1e9},
 int64[1] axis = {1}> {
    embedded = Gather(table, input_ids) x = LayerNormalization(embedded, gain)
    q = MatMul(x, w0) k = MatMul(x, w1) v = MatMul(x, w2)
    turned = Transpose<perm=[0, 2, 1]>(k) scores = MatMul(q, turned)
    present = Cast<to=1>(attention_mask) absent = Sub(one, present) distance = Mul(absent, far)
    mask = Unsqueeze(distance, axis) masked = Add(scores, mask) shares = Softmax<axis=-1>(masked)
    mixed = MatMul(shares, v) attended = MatMul(mixed, w3) sum = Add(attended, x)
    y = LayerNormalization(sum, gain) wide = MatMul(y, w4)
    scaled = Div(wide, root) erf = Erf(scaled) added = Add(erf, one) halved = Mul(half, added)
    gelu = Mul(wide, halved) narrow = MatMul(gelu, w5) z = Add(narrow, y)
    sentence = ReduceMean<keepdims=0>(z, axis)
}"""


def make_encoder() -> onnx.ModelProto:
    """Return the encoder with random weights."""
    model = onnx.parser.parse_model(_TEXT)
    random = np.random.default_rng(0)
    shapes = {"table": (VOCABULARY, WIDTH), "gain": (WIDTH,)}
    shapes |= {f"w{index}": (WIDTH, WIDTH) for index in range(6)}
    for name, shape in shapes.items():
        weight = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def make_sentences(rows: int = 8, tokens: int = 12) -> dict[str, np.ndarray]:
    """Return tokens of sentences of several lengths, and their mask."""
    random = np.random.default_rng(1)
    lengths = random.integers(3, tokens + 1, size=(rows, 1))
    mask = (np.arange(tokens) < lengths).astype(np.int64)
    return {
        "input_ids": random.integers(VOCABULARY, size=(rows, tokens)) * mask,
        "attention_mask": mask,
    }
