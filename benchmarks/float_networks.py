# SPDX-License-Identifier: Apache-2.0
"""Speed of float networks after `quantize` and `compile`, relative to ONNX Runtime.

    python benchmarks/float_networks.py [NAME ...]

Networks are exported from PyTorch with random weights (`_torch_networks.py`), or come from the
packages of `ptq/requirements.txt` that are installed. All sessions run on one thread, in turns.
What counts is the shortest processor time of that thread, so that other work on the machine
disturbs less.

    float32       the float network in ONNX Runtime with its default options
    int8          the result of `onnxruntime.quantization.quantize_static`, with scales per channel
    default       `quantize` with its default options, then `compile`
    integer-only  `quantize` with integer_only=True, then `compile`

A ratio above 1 means that ours is faster. Calibration data are random numbers: the table says
nothing about accuracy.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from _measure import arguments, best_times, machine, show, versions
from _sessions import session
from _torch_networks import NETWORKS, export
from onnx import version_converter

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads
from anybit.onnx.static_int8 import quantize_static_int8

COLUMNS = (
    *("network", "float32", "int8", "default over float32", "over int8", "layers, regions"),
    *("integer-only over float32", "over int8", "layers, regions"),
)
# Models in packages: the file, and the shapes of its inputs.
PACKAGED = {
    "text direction": (
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": (1, 3, 48, 192)},
    ),
    "text recognition": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        {"x": (1, 3, 48, 320)},
    ),
    "text detection": (
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_det_infer.onnx",
        {"x": (1, 3, 320, 320)},
    ),
    "pitch": (
        "swift_f0",
        "model.onnx",
        {"audio": (1, 16000), "fmin": (), "fmax": ()},
    ),
    "voice activity": (
        "silero_vad",
        "data/silero_vad_16k_sequence.onnx",
        {"input": (1, 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    ),
}
SAMPLES = 4
LEAST_OPSET = 13
"""The first opset with scales per channel."""

Feeds = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class FloatNetwork:
    """A float model and the shapes of its inputs."""

    name: str
    path: Path
    shapes: Mapping[str, tuple[int, ...]]

    def random_feeds(self, seed: int) -> dict[str, np.ndarray]:
        """Return normally distributed inputs."""
        random = np.random.default_rng(seed)
        return {
            name: np.asarray(random.standard_normal(shape, dtype=np.float32))
            for name, shape in self.shapes.items()
        }


@dataclass(frozen=True)
class Compiled:
    """A compiled network, and how much of it is compiled."""

    session: onnxruntime.InferenceSession
    coverage: str


def packaged_networks() -> Iterator[FloatNetwork]:
    """Yield the models of installed packages."""
    for name, (package, file, shapes) in PACKAGED.items():
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            yield FloatNetwork(name, Path(spec.origin).parent / file, shapes)


def exported_networks(folder: Path, names: list[str]) -> Iterator[FloatNetwork]:
    """Export networks of PyTorch and yield them."""
    for name in names:
        path = folder / f"{name}.onnx"
        shape = export(name, path)
        (source,) = onnx.load(path).graph.input
        yield FloatNetwork(name, path, {source.name: shape})


def compile_network(network: FloatNetwork, folder: Path, *, integer_only: bool) -> Compiled:
    """Quantize and compile a network."""
    samples = [network.random_feeds(seed) for seed in range(SAMPLES)]
    quantized = anybit.quantize(network.path, samples, integer_only=integer_only)
    compiled = anybit.compile(quantized, shapes=network.shapes)
    path = folder / f"{network.name}.compiled.onnx"
    compiled.save(path)
    options = onnxruntime.SessionOptions()
    anybit.onnxruntime.register(options)
    layers = compiled.report.layers
    inside = sum(layer.guarantee is not None for layer in layers)
    coverage = f"{inside} of {len(layers)}, {len(compiled.report.programs)}"
    return Compiled(session(onnx.load(path), options), coverage)


def quantize_int8(network: FloatNetwork) -> onnxruntime.InferenceSession | None:
    """Return a session of ONNX Runtime's static int8; None if its tool refuses the network."""
    model = onnx.load(network.path)
    if next(entry.version for entry in model.opset_import if not entry.domain) < LEAST_OPSET:
        model = version_converter.convert_version(model, LEAST_OPSET)
    result = quantize_static_int8(ir.from_proto(model), network.random_feeds(0))
    return None if result is None else session(ir.to_proto(result))


def measure(network: FloatNetwork, folder: Path, rounds: int) -> tuple[str, ...]:
    """Return a row of the table."""
    default = compile_network(network, folder, integer_only=False)
    integers = compile_network(network, folder, integer_only=True)
    sessions = {
        "float32": session(onnx.load(network.path)),
        "int8": quantize_int8(network),
        "default": default.session,
        "integers": integers.session,
    }
    feeds = network.random_feeds(0)
    times = best_times(
        {
            name: lambda runner=runner: runner.run(None, feeds)
            for name, runner in sessions.items()
            if runner is not None
        },
        rounds,
        clock=time.thread_time,
    )
    ratios = {
        (own, peer): f"{times[peer] / times[own]:.2f} x" if peer in times else "-"
        for own in ("default", "integers")
        for peer in ("float32", "int8")
    }
    return (
        network.name,
        *(f"{times[peer] * 1e3:.2f} ms" if peer in times else "-" for peer in ("float32", "int8")),
        *(ratios["default", "float32"], ratios["default", "int8"], default.coverage),
        *(ratios["integers", "float32"], ratios["integers", "int8"], integers.coverage),
    )


def main() -> None:
    """Measure all networks, or those that are named."""
    parser = arguments(__doc__)
    parser.add_argument("name", nargs="*", help="networks (default: all)")
    options = parser.parse_args()
    set_num_threads(1)
    torch.set_num_threads(1)
    names = options.name or [*PACKAGED, *NETWORKS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packaged = [network for network in packaged_networks() if network.name in names]
        exported = exported_networks(folder, [name for name in names if name in NETWORKS])
        rows = [measure(network, folder, options.rounds) for network in (*packaged, *exported)]
    title = f"{machine()}, {versions('onnxruntime', 'torch')}, one thread"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
