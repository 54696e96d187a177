# SPDX-License-Identifier: Apache-2.0
"""Networks for microcontrollers as quantized ONNX files: MLPerf Tiny and small perceptrons.

    python benchmarks/microcontrollers/networks.py FOLDER [NAME ...] [--variants w8a8,w4a4]

The four architectures of MLPerf Tiny, without the softmax at their ends, and two perceptrons are
trained for up to a minute. One perceptron has real data: scikit-learn's 8 x 8 digits. The data of
the others are made from a seed: noisy patterns, four per class, and spectra with eight factors.
They compare variants; an accuracy on them says nothing about real data.

W8A8, W4A8 and W4A4 are quantized after training, for integers only. W2A2, ternary and W1A1 networks
are trained with quantizers and batch normalization, which is folded then; their inputs, first and
last weights and operands of sums have 8 bits. FOLDER gets NAME_VARIANT.onnx, NAME_float.onnx,
NAME.pt with the float parameters, and NAME.npz with inputs `x`.

The table has the accuracy of the compiled networks, of autoencoders the area under the curve of
anomalies, and bytes of the weight arrays in C relative to those of W8A8: of all layers, and of
all but the first and the last. This needs PyTorch, onnxscript and scikit-learn.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _architectures import NETWORKS, Add, Network, Quantized, Residual
from _data import make_data, make_test_data, score
from torch import nn

import anybit
import anybit.torch
from anybit.compiler.backends.c.source import emit_c
from anybit.torch.nn import QuantAdd, quantizer

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _measure import show

STEPS, BATCH, RATE = 300, 32, 1e-2
CALIBRATION_ROWS, SAMPLE_ROWS, TEST_ROWS = 128, 8, 1024
Row = tuple[str, ...]
COLUMNS = ("network", "variant", "accuracy", "weights", "inner weights")

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


def train(module: nn.Module, network: Network, seed: int) -> None:
    """Train on fresh rows at each step."""
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        x, labels = make_data(network, BATCH, 100 + step + STEPS * seed)
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


def train_quantized(
    module: nn.Module, network: Network, weight: str, activation: str, seed: int
) -> nn.Module:
    """Return a fine-tuned copy with quantizers, without batch normalization.

    Layers of few bits need batch normalization as they learn: it scales their coarse weights.
    """
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
    for block in quantized.modules():
        if isinstance(block, Residual) and isinstance(block.shortcut, nn.Conv2d):
            # One tensor of codes for both convolutions, not two.
            block.shortcut.input_quantizer = block.body[0].input_quantizer
    train(quantized, network, seed)
    return anybit.torch.fold_batchnorm(quantized)


def write_networks(
    name: str, folder: Path, variants: list[str], seed: int
) -> list[tuple[str, ...]]:
    """Train a network, and write its variants and inputs; return rows of the table."""
    network = NETWORKS[name]
    torch.manual_seed(seed)
    trained = network.create()
    train(trained, network, seed)
    torch.save(trained.state_dict(), folder / f"{name}.pt")
    module = anybit.torch.fold_batchnorm(trained)
    rows = make_data(network, CALIBRATION_ROWS, 1)[0]
    samples, labels = (tensor.numpy() for tensor in make_test_data(network, TEST_ROWS))
    np.savez(folder / f"{name}.npz", x=samples[:SAMPLE_ROWS])
    float_path = folder / f"{name}_float.onnx"
    options = {"dynamo": True, "verbose": False, "input_names": ["x"], "output_names": ["y"]}
    torch.onnx.export(module, (rows[:1],), **options).save(float_path)
    with torch.no_grad():
        expected = module(torch.tensor(samples)).numpy()
    table: list[Row] = [(name, "float", f"{score(network, samples, expected, labels):.1%}", "", "")]
    reference: list[int] = []
    for variant in ("w8a8", *(variant for variant in variants if variant != "w8a8")):
        path = folder / f"{name}_{variant}.onnx"
        if variant in POST_TRAINING:
            quantize = POST_TRAINING[variant]
            anybit.quantize(float_path, rows.numpy(), integer_only=True, **quantize).save(path)
        else:
            quantized = train_quantized(trained, network, *TRAINED[variant], seed)
            names = {"input_names": ["x"], "output_names": ["y"]}
            anybit.torch.export(quantized, rows[:1], path, dynamic_batch=False, **names)
        compiled = anybit.compile(path)
        got = np.concatenate([compiled.run(row[None])["y"] for row in samples])
        weights = measure_weights(compiled)
        reference = reference or weights
        ratios = [sum(weights) / sum(reference), sum(weights[1:-1]) / sum(reference[1:-1])]
        right = f"{score(network, samples, got, labels):.1%}"
        table.append((name, variant, right, *(f"{ratio:.3f}" for ratio in ratios)))
        print(*table[-1], flush=True)
    return table


def measure_weights(compiled: anybit.CompiledModel) -> list[int]:
    """Return the bytes of the weight arrays in C."""
    (program,) = compiled.report.programs
    text = emit_c(program, "net").files["net.c"]
    return [int(size) for size in re.findall(r"static const u?int8_t \w+_weights\[(\d+)\]", text)]


def main() -> None:
    """Write networks, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--variants", default="", help="comma-separated; all by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and training data")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in options.names or NETWORKS:
        chosen = options.variants.split(",") if options.variants else NETWORKS[name].variants
        rows += write_networks(name, options.folder, list(chosen), options.seed)
    show("Accuracy and bytes of weights", COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    main()
