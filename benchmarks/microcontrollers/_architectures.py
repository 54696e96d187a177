# SPDX-License-Identifier: Apache-2.0
"""Architectures of MLPerf Tiny, without the softmax at their ends, and two small perceptrons."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn


class Add(nn.Module):
    """x + y, a module so that quantizers can replace it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Quantized(nn.Identity):
    """A place for the quantizer of a tensor that no layer multiplies."""


class Residual(nn.Module):
    """relu(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.input, self.body, self.shortcut = Quantized(), body, shortcut
        self.add, self.relu = Add(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        y: Tensor = self.relu(self.add(self.body(x), self.shortcut(x)))
        return y


def conv(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    padding: int | tuple[int, int] = 1,
    groups: int = 1,
    relu: bool = True,
) -> list[nn.Module]:
    """Return a convolution, a batch normalization and a ReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), *([nn.ReLU()] if relu else [])]


def separable(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Return a depthwise 3 x 3 and a pointwise convolution."""
    depthwise = conv(inputs, inputs, 3, stride, groups=inputs)
    return [*depthwise, *conv(inputs, outputs, 1, padding=0)]


def classifier(channels: int, classes: int, window: tuple[int, int]) -> list[nn.Module]:
    """Return a mean over height and width, and a linear layer."""
    return [Quantized(), nn.AvgPool2d(window), nn.Flatten(), nn.Linear(channels, classes)]


def dense(inputs: int, outputs: int) -> list[nn.Module]:
    """Return a linear layer, a batch normalization and a ReLU."""
    return [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]


def ds_cnn() -> nn.Module:
    """Keyword spotting: DS-CNN with 64 channels for 49 x 10 coefficients, 12 classes."""
    first = conv(1, 64, (10, 4), 2, (5, 1))
    blocks = [layer for _ in range(4) for layer in separable(64, 64)]
    return nn.Sequential(*first, *blocks, *classifier(64, 12, (25, 5)))


def resnet8() -> nn.Module:
    """Image classification: ResNet-8 for 3 x 32 x 32, 10 classes."""

    def block(inputs: int, outputs: int, stride: int) -> Residual:
        body = [*conv(inputs, outputs, 3, stride), *conv(outputs, outputs, relu=False)]
        shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()
        return Residual(nn.Sequential(*body), shortcut)

    blocks = [block(16, 16, 1), block(16, 32, 2), block(32, 64, 2)]
    return nn.Sequential(*conv(3, 16), *blocks, *classifier(64, 10, (8, 8)))


def mobilenet() -> nn.Module:
    """Visual wake words: MobileNetV1 with a width of 0.25 for 3 x 96 x 96, 2 classes."""
    shapes = [(8, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)]
    shapes += [(128, 128, 1)] * 5 + [(128, 256, 2), (256, 256, 1)]
    blocks = [layer for shape in shapes for layer in separable(*shape)]
    return nn.Sequential(*conv(3, 8, 3, 2), *blocks, *classifier(256, 2, (3, 3)))


def autoencoder() -> nn.Module:
    """Anomaly detection: 640-128-128-128-128-8-128-128-128-128-640."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers = [layer for i in range(9) for layer in dense(widths[i], widths[i + 1])]
    return nn.Sequential(*layers, nn.Linear(128, 640))


def gesture_mlp() -> nn.Module:
    """Gestures: a perceptron for 32 samples of 3 axes, 8 classes, 20 992 weights."""
    layers = [*dense(96, 128), *dense(128, 64), nn.Linear(64, 8)]
    return nn.Sequential(*layers)


def digits_mlp() -> nn.Module:
    """Handwritten digits: a perceptron for 8 x 8 pixels, 10 classes, 6 464 weights."""
    return nn.Sequential(*dense(64, 64), *dense(64, 32), nn.Linear(32, 10))


@dataclass(frozen=True)
class Network:
    """An architecture and its data.

    Attributes:
        create: Function that returns the module with random weights.
        shape: Shape of a row of the input.
        classes: Number of classes; 0 where the target is the input.
        noise: Standard deviation of the noise in made data, whose patterns have 1; 0 for digits.
        smoothing: Size of the window that smooths patterns along the last axes.
        variants: Names of the variants that are made.
    """

    create: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    noise: float = 0
    smoothing: int = 1
    variants: tuple[str, ...] = ("w8a8", "w4a8", "w4a4", "w2a2", "ternary", "w1a1")


NETWORKS = {
    "ds_cnn": Network(ds_cnn, (1, 49, 10), 12, 1.7, 5),
    "resnet8": Network(resnet8, (3, 32, 32), 10, 4, 7),
    "mobilenet": Network(mobilenet, (3, 96, 96), 2, 2.5, 15),
    "autoencoder": Network(autoencoder, (640,), 0, 0.2),
    "gesture_mlp": Network(gesture_mlp, (96,), 8, 1.6, 9),
    "digits_mlp": Network(digits_mlp, (64,), 10),
}
