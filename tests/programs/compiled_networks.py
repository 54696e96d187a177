# SPDX-License-Identifier: Apache-2.0
"""Equality of the outputs of compiled networks on different machines.

    python tests/programs/compiled_networks.py write FOLDER [--count NUMBER]
    python tests/programs/compiled_networks.py check FOLDER

`write` saves random networks that are exact, and the example, with inputs and the outputs of this
machine; `check` compiles and compares them on another. ONNX Runtime's floats differ between
machines, so the networks have no approximate float operators. The exit code is 1 if any bit
differs.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from places import EXAMPLE

import anybit
from anybit._native import _core

if TYPE_CHECKING:
    from network_builder import Network

APPROXIMATE = {"LayerNormalization", "Sigmoid", "Softmax", "Tanh"}
ROWS = 5


def write(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with np.load(EXAMPLE.with_name("digits.npz")) as digits:
        _write(folder / "digits", onnx.load(EXAMPLE), digits["x"][:ROWS])
    for place, (proto, x) in enumerate(_random_networks(count)):
        _write(folder / f"{place:03}", proto, x)


def _random_networks(count: int) -> list[tuple[onnx.ModelProto, np.ndarray]]:
    # `check` works without Hypothesis.
    from hypothesis import HealthCheck, given, settings
    from networks import inputs, networks

    examples: dict[tuple[str, ...], tuple[onnx.ModelProto, np.ndarray]] = {}

    @given(network=networks(powers=True))
    @settings(
        max_examples=30 * count,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def collect(network: "Network") -> None:
        # Hypothesis often draws the same network again with other numbers.
        kinds = tuple(node.op_type for node in network.proto.graph.node)
        if len(examples) < count and kinds not in examples and _is_exact(network):
            examples[kinds] = network.proto, inputs(network, ROWS)

    collect()
    return list(examples.values())


def _is_exact(network: "Network") -> bool:
    kinds = {node.op_type for node in network.proto.graph.node}
    if not network.codes or kinds & APPROXIMATE:
        return False
    layers = anybit.compile(network.proto).report.layers
    return {layer.guarantee for layer in layers} == {"exact"}


def _write(stem: Path, proto: onnx.ModelProto, x: np.ndarray) -> None:
    onnx.save(proto, stem.with_suffix(".onnx"))
    np.savez(stem.with_suffix(".npz"), x=x, y=_outputs(proto, x))


def _outputs(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    (y,) = anybit.compile(proto).run(x).values()
    return y


def differs(stem: Path) -> bool:
    with np.load(stem.with_suffix(".npz")) as arrays:
        y = _outputs(onnx.load(stem.with_suffix(".onnx")), arrays["x"])
        return y.dtype != arrays["y"].dtype or y.tobytes() != arrays["y"].tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    if options.action == "write":
        write(options.folder, options.count)
    began = time.monotonic()
    files = sorted(options.folder.glob("*.onnx"))
    different = [path.stem for path in files if differs(path)]
    print(f"{_core.isa()}: {len(files)} compiled networks, {time.monotonic() - began:.0f} s")
    if different or not files:
        sys.exit(f"other bits: {', '.join(different) or 'no networks'}")


if __name__ == "__main__":
    main()
