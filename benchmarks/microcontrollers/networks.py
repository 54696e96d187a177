# SPDX-License-Identifier: Apache-2.0
"""Networks for microcontrollers as quantized ONNX files: MLPerf Tiny and a small perceptron.

    python benchmarks/microcontrollers/networks.py FOLDER [NAME ...] [--variants w8a8,w4a4]

The four architectures of MLPerf Tiny, without the softmax at their ends, and a perceptron for 2 KB
of memory are trained for a few seconds. Their data are made from a seed: noisy patterns, one per
class, and spectra with eight factors. They give realistic ranges of weights and activations; an
accuracy on them says nothing about real data.

W8A8, W4A8 and W4A4 are quantized after training, for integers only. W2A2, ternary and W1A1 networks
are trained with quantizers; their inputs, first and last weights and operands of sums have 8 bits.
FOLDER gets NAME_VARIANT.onnx, NAME_float.onnx,
NAME.pt with the float parameters, and NAME.npz with inputs `x`.
This needs PyTorch and onnxscript.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

import anybit
import anybit.torch
from anybit.compiler.backends.integer_tails import make_integer_tails
from anybit.torch.nn import QuantAdd, quantizer

STEPS, BATCH, RATE = 150, 32, 2e-3
CALIBRATION_ROWS, SAMPLE_ROWS = 128, 8


class Add(nn.Module):
    """x + y, a module so that quantizers can replace it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Quantized(nn.Identity):
    """A place for the quantizer of a tensor that no layer multiplies."""


class Residual(nn.Module):
    """relu(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
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


@dataclass(frozen=True)
class Network:
    """An architecture and its data.

    Attributes:
        create: Function that returns the module with random weights.
        shape: Shape of a row of the input.
        classes: Number of classes; 0 where the target is the input.
        smoothing: Size of the window that smooths patterns along the last axes.
        variants: Names of the variants that are made.
    """

    create: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    smoothing: int
    variants: tuple[str, ...] = ("w8a8", "w4a8", "w4a4", "w2a2", "ternary", "w1a1")


NETWORKS = {
    "ds_cnn": Network(ds_cnn, (1, 49, 10), 12, 5),
    "resnet8": Network(resnet8, (3, 32, 32), 10, 7),
    "mobilenet": Network(mobilenet, (3, 96, 96), 2, 15),
    "autoencoder": Network(autoencoder, (640,), 0, 0),
    "gesture_mlp": Network(gesture_mlp, (96,), 8, 9, ("w8a8", "w4a8", "w4a4", "w2a2")),
}

POST_TRAINING = {
    "w8a8": {"weights": "int8", "activations": "uint8"},
    "w4a8": {"weights": "int4", "activations": "uint8"},
    "w4a4": {"weights": "int4", "activations": "uint4"},
}
TRAINED = {
    "w2a2": ("int2 per-channel learned", "uint2 learned"),
    "ternary": ("ternary per-channel absmax", "uint2 learned"),
    "w1a1": ("bipolar per-channel absmean", "uint1 learned"),
}


def make_data(network: Network, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows and their classes; patterns do not depend on the seed."""
    fixed, random = np.random.default_rng(1), np.random.default_rng(seed)
    if not network.classes:
        factors = fixed.standard_normal((8, *network.shape))
        x = np.maximum(random.standard_normal((rows, 8)), 0) @ factors
        x += 0.2 * random.standard_normal(x.shape)
        return torch.tensor(x, dtype=torch.float32), torch.zeros(rows, dtype=torch.int64)
    patterns = fixed.standard_normal((network.classes, *network.shape))
    window = np.ones(network.smoothing) / network.smoothing
    for axis in range(max(1, patterns.ndim - 2), patterns.ndim):
        patterns = np.apply_along_axis(lambda row: np.convolve(row, window, "same"), axis, patterns)
    patterns /= patterns.std()
    labels = random.integers(network.classes, size=rows)
    x = patterns[labels] + 1.5 * random.standard_normal((rows, *network.shape))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels)


def train(module: nn.Module, network: Network, steps: int, rate: float) -> None:
    """Train on fresh rows at each step."""
    torch.manual_seed(0)
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for step in range(steps):
        x, labels = make_data(network, BATCH, 100 + step)
        y = module(x)
        loss = (
            nn.functional.cross_entropy(y, labels)
            if network.classes
            else nn.functional.mse_loss(y, x)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    module.eval()


def replace_modules(module: nn.Module, old: type[nn.Module], create: Callable[[], Any]) -> None:
    """Replace modules of a type by new ones."""
    for name, child in module.named_children():
        if type(child) is old:
            setattr(module, name, create())
        replace_modules(child, old, create)


def train_quantized(module: nn.Module, network: Network, weight: str, activation: str) -> nn.Module:
    """Return a fine-tuned copy with quantizers."""
    layers = [n for n, m in module.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    outer = "int8 per-channel absmax"
    spec = {
        "weight": weight,
        "activation": activation,
        "bias": "int32 accumulator",
        "layers": {
            layers[0]: {"weight": outer, "activation": "int8 ema"},
            layers[-1]: {"weight": outer, "activation": "uint8 ema"},
        },
    }
    quantized = anybit.torch.quantize_model(module, spec)
    replace_modules(quantized, Add, lambda: QuantAdd(quantizer("int8 ema")))
    replace_modules(quantized, Quantized, lambda: quantizer("uint8 ema"))
    train(quantized, network, STEPS, RATE)
    return quantized


def write_networks(name: str, folder: Path, variants: list[str], show: Callable[..., None]) -> None:
    """Train a network, and write its variants and inputs."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    trained = network.create()
    train(trained, network, STEPS, RATE)
    torch.save(trained.state_dict(), folder / f"{name}.pt")
    module = anybit.torch.fold_batchnorm(trained)
    rows = make_data(network, CALIBRATION_ROWS, 1)[0]
    samples, labels = make_data(network, 256, 2)
    np.savez(folder / f"{name}.npz", x=samples[:SAMPLE_ROWS].numpy())
    float_path = folder / f"{name}_float.onnx"
    options = {"dynamo": True, "verbose": False, "input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(module, (rows[:1],), **options).save(float_path)
    with torch.no_grad():
        expected = module(samples).numpy()
    show(name, "float", expected, expected, labels.numpy(), "")
    for variant in variants:
        path = folder / f"{name}_{variant}.onnx"
        if variant in POST_TRAINING:
            quantize = POST_TRAINING[variant]
            anybit.quantize(float_path, rows.numpy(), integer_only=True, **quantize).save(path)
        else:
            quantized = train_quantized(module, network, *TRAINED[variant])
            names = {"input_names": ["x"], "output_names": ["y"]}
            anybit.torch.export(quantized, rows[:1], path, dynamic_batch=False, **names)
        got = anybit.load(path).run(samples.numpy())["y"]
        show(name, variant, expected, got, labels.numpy(), describe_program(path))


def describe_program(path: Path) -> str:
    """Return the number of integer regions, and how many instructions have what tail."""
    programs = anybit.compile(path).report.programs
    counts = Counter(
        type(getattr(instruction, "tail", instruction)).__name__
        for program in programs
        for instruction in make_integer_tails(program).instructions
    )
    tails = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return f"{len(programs)} regions: {tails}"


def main() -> None:
    """Write networks, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--variants", default="", help="comma-separated; all by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=200)

    def show(name: str, variant: str, expected: Any, got: Any, labels: Any, note: str) -> None:
        error = 10 * np.log10((expected**2).sum() / max(((got - expected) ** 2).sum(), 1e-9))
        right = (got.argmax(1) == labels).mean() if NETWORKS[name].classes else float("nan")
        console.print(f"{name} {variant}: {error:.1f} dB, accuracy {right:.3f}, {note}")

    for name in options.names or NETWORKS:
        chosen = options.variants.split(",") if options.variants else NETWORKS[name].variants
        write_networks(name, options.folder, list(chosen), show)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    main()
