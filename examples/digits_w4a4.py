# SPDX-License-Identifier: Apache-2.0
"""Digit classifier with 4-bit weights and 4-bit activations, trained with NumPy.

    python examples/digits_w4a4.py [FOLDER]

This writes three files to FOLDER (default: the folder of this file) and prints both accuracies:

    digits_w4a4.onnx    the quantized network, a QONNX model
    digits_float.onnx   the same network trained without quantizers
    digits.npz          x: test images, y: expected outputs of digits_w4a4, label: the digits

All scales are powers of two. Every product and every sum is then a small integer times a power of
two, which is exact in float32: every runtime gives the same bits, in any order of summation. `y` is
computed with integers, independently of anybit. Training rounds gradients to a grid, so that the
files are the same on every machine, whatever the BLAS.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import anybit

SIZES = (64, 64, 32, 10)
BITS = 4
BIAS_BITS = 16
INPUT_SCALE = 1.0  # the pixels are integers from 0 to 16
HIDDEN_SCALE = 0.5
EPOCHS = 600
LEARNING_RATE = 0.003
GRADIENT_STEP = 2.0**-24
DOMAIN = "qonnx.custom_op.general"


class Layer(NamedTuple):
    """Weights and biases of one layer, before quantization."""

    weight: np.ndarray
    bias: np.ndarray


class Digits(NamedTuple):
    """Images of shape (rows, 8, 8), and their labels."""

    images: np.ndarray
    labels: np.ndarray


def load_splits() -> tuple[Digits, Digits]:
    """Return the training and test splits of scikit-learn's digits; every seventh is a test."""
    data = load_digits()
    test = np.arange(len(data.target)) % 7 == 0
    training, testing = (Digits(data.images[rows], data.target[rows]) for rows in (~test, test))
    return training, testing


def weight_scale(weight: np.ndarray) -> np.ndarray:
    """Return per output the largest power of two up to a seventh of its largest weight."""
    largest = np.abs(weight).max(axis=0)
    _, exponent = np.frexp(largest / 7)  # significands are in [1/2, 1)
    return np.ldexp(np.ones_like(largest), exponent - 1)


def quantize_weight(weight: np.ndarray) -> np.ndarray:
    """Quantize weights per output, to codes from -7 to 7."""
    return anybit.int_quant(weight, weight_scale(weight), 0, BITS, narrow=True)


def quantize_bias(layer: Layer, input_scale: float) -> np.ndarray:
    """Quantize biases with the scale of the accumulator."""
    step = input_scale * weight_scale(layer.weight)
    return anybit.int_quant(layer.bias, step, 0, BIAS_BITS)


def quantize_activation(x: np.ndarray, scale: float) -> np.ndarray:
    """Quantize activations to codes from 0 to 15."""
    return anybit.int_quant(x, scale, 0, BITS, signed=False)


def forward(layers: list[Layer], images: np.ndarray, *, quantize: bool) -> list[np.ndarray]:
    """Return the input of each layer, and the output of the last one."""
    values = [images.reshape(len(images), -1)]
    scale = INPUT_SCALE
    for index, (weight, bias) in enumerate(layers):
        x = np.maximum(values[-1], 0)
        if quantize:
            x = quantize_activation(x, scale)
            weight, bias = quantize_weight(weight), quantize_bias(layers[index], scale)
        values[-1] = x
        values.append(x @ weight + bias)
        scale = HIDDEN_SCALE
    return values


def gradients(
    layers: list[Layer], images: np.ndarray, labels: np.ndarray, *, quantize: bool
) -> list[Layer]:
    """Return the gradients of the squared hinge loss, by the straight-through estimator.

    Rounding has the gradient of the identity, saturation that of a constant.
    """
    *inputs, outputs = forward(layers, images, quantize=quantize)
    target = 2.0 * np.eye(SIZES[-1])[labels] - 1
    gradient = -2 * target * np.maximum(0, 1 - target * outputs) / len(images)
    result = []
    for (weight, _), x in zip(reversed(layers), reversed(inputs), strict=True):
        if quantize:
            # The sums below are exact on this grid, in any order.
            gradient = np.rint(gradient / GRADIENT_STEP) * GRADIENT_STEP
            weight = quantize_weight(weight)
        result.append(Layer(x.T @ gradient, gradient.sum(axis=0)))
        inside = x > 0
        if quantize:
            inside &= x < HIDDEN_SCALE * (2**BITS - 1)
        gradient = (gradient @ weight.T) * inside
    return result[::-1]


def train(data: Digits, *, quantize: bool, seed: int = 0) -> list[Layer]:
    """Train by Adam on all images at once, with a learning rate that falls to zero."""
    random = np.random.default_rng(seed)
    layers = [
        Layer((2 * random.random((rows, columns)) - 1) * np.sqrt(3 / rows), np.zeros(columns))
        for rows, columns in pairwise(SIZES)
    ]
    layers[0].weight[:] /= 8  # the pixels' mean is about 5, not 1
    means = [[np.zeros_like(array) for array in layer] for layer in layers]
    squares = [[np.zeros_like(array) for array in layer] for layer in layers]
    mean_decay = square_decay = 1.0  # powers of the decay rates, for the bias correction
    for epoch in range(EPOCHS):
        mean_decay *= 0.9
        square_decay *= 0.999
        rate = LEARNING_RATE * (1 - epoch / EPOCHS)
        updates = gradients(layers, *data, quantize=quantize)
        for arrays in zip(layers, updates, means, squares, strict=True):
            for array, gradient, mean, square in zip(*arrays, strict=True):
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient * gradient - square)
                deviation = np.sqrt(square / (1 - square_decay)) + 1e-8
                array -= rate * (mean / (1 - mean_decay)) / deviation
    return layers


def integer_outputs(layers: list[Layer], images: np.ndarray) -> np.ndarray:
    """Return the outputs of the quantized network, computed with integers."""
    largest, largest_weight = 2**BITS - 1, 2 ** (BITS - 1) - 1
    codes = np.clip(np.rint(images.reshape(len(images), -1) / INPUT_SCALE), 0, largest)
    scale = INPUT_SCALE
    for layer in layers:
        step = weight_scale(layer.weight)
        weight = np.clip(np.rint(layer.weight / step), -largest_weight, largest_weight)
        bias = np.clip(np.rint(layer.bias / (scale * step)), -(2**15), 2**15 - 1)
        sums = codes.astype(np.int64) @ weight.astype(np.int64) + bias.astype(np.int64)
        outputs = sums * (scale * step)
        scale = HIDDEN_SCALE
        codes = np.clip(np.rint(outputs / scale), 0, largest)
    return outputs.astype(np.float32)


def float_model(layers: list[Layer]) -> onnx.ModelProto:
    """Build the network without quantizers, for any number of rows."""
    constants, value = {}, "pixels"
    nodes = [helper.make_node("Flatten", ["x"], ["pixels"], name="pixels")]
    for number, layer in enumerate(layers, start=1):
        weight, bias = f"weight_{number}", f"bias_{number}"
        constants |= {weight: layer.weight, bias: layer.bias}
        last = number == len(layers)
        total, hidden = "y" if last else f"sum_{number}", f"hidden_{number}"
        nodes.append(helper.make_node("Gemm", [value, weight, bias], [total], name=total))
        if not last:
            nodes.append(helper.make_node("Relu", [total], [hidden], name=hidden))
        value = hidden
    return model_of("digits_float", nodes, constants)


def qonnx_model(layers: list[Layer]) -> onnx.ModelProto:
    """Build the QONNX model: float weights with quantizers, for any number of rows."""
    constants: dict[str, np.ndarray] = {
        "zero": np.float32(0),
        "bits": np.float32(BITS),
        "bias_bits": np.float32(BIAS_BITS),
        "input_scale": np.float32(INPUT_SCALE),
        "hidden_scale": np.float32(HIDDEN_SCALE),
    }
    nodes: list[onnx.NodeProto] = []

    def node(op_type: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def quantizer(x: str, scale: str, bits: str, *, signed: bool, narrow: bool = False) -> str:
        return node(
            "IntQuant",
            [x, scale, "zero", bits],
            f"{x}_q",
            domain=DOMAIN,
            signed=int(signed),
            narrow=int(narrow),
            rounding_mode="ROUND",
        )

    value = node("Flatten", ["x"], "pixels")
    scale, scale_name = INPUT_SCALE, "input_scale"
    for number, layer in enumerate(layers, start=1):
        step = weight_scale(layer.weight)
        constants |= {
            f"weight_{number}": layer.weight,
            f"weight_{number}_scale": step[np.newaxis],
            f"bias_{number}": layer.bias,
            f"bias_{number}_scale": scale * step,
        }
        value = quantizer(value, scale_name, "bits", signed=False)
        weight = f"weight_{number}"
        weight = quantizer(weight, f"{weight}_scale", "bits", signed=True, narrow=True)
        bias = quantizer(f"bias_{number}", f"bias_{number}_scale", "bias_bits", signed=True)
        last = number == len(layers)
        value = node("Gemm", [value, weight, bias], "y" if last else f"sum_{number}")
        if not last:
            value = node("Relu", [value], f"hidden_{number}")
        scale, scale_name = HIDDEN_SCALE, "hidden_scale"
    return model_of("digits_w4a4", nodes, constants, (DOMAIN,))


def model_of(
    name: str,
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    """Build a model from x, images, to y, one score per digit."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", SIZES[-1]])],
        [
            numpy_helper.from_array(np.asarray(array, np.float32), constant)
            for constant, array in constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, producer_name="examples/digits_w4a4.py"
    )


class Example(NamedTuple):
    """Both models with their test data and accuracies."""

    model: onnx.ModelProto
    float_model: onnx.ModelProto
    arrays: dict[str, np.ndarray]
    float_accuracy: float
    accuracy: float


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the top-1 accuracy."""
    return float(np.mean(outputs.argmax(axis=1) == labels))


def make(seed: int = 0) -> Example:
    """Train with and without quantizers and test both networks."""
    training, test = load_splits()
    with threadpool_limits(1):  # threads slow down products of small matrices
        float_layers = train(training, quantize=False, seed=seed)
        layers = train(training, quantize=True, seed=seed)
    float_outputs = forward(float_layers, test.images, quantize=False)[-1]
    layers, float_layers = (
        [Layer(*(array.astype(np.float32) for array in layer)) for layer in network]
        for network in (layers, float_layers)
    )
    y = integer_outputs(layers, test.images)
    arrays = {"x": test.images.astype(np.float32), "y": y, "label": test.labels.astype(np.int64)}
    return Example(
        qonnx_model(layers),
        float_model(float_layers),
        arrays,
        accuracy(float_outputs, test.labels),
        accuracy(y, test.labels),
    )


def main(folder: Path) -> None:
    example = make()
    onnx.save(example.model, folder / "digits_w4a4.onnx")
    onnx.save(example.float_model, folder / "digits_float.onnx")
    np.savez(folder / "digits.npz", **example.arrays)
    print(f"{len(example.arrays['x'])} test images")
    print(f"float:  {example.float_accuracy:.1%} correct")
    print(f"4 bits: {example.accuracy:.1%} correct")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
