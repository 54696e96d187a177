# SPDX-License-Identifier: Apache-2.0
"""Speed of one row times a matrix, with weights from a cache and from memory.

    python benchmarks/gemv.py

Weights of 8 to 1 bits and in blocks, with `int8 dynamic` activations, compiled by anybit, beside
ONNX Runtime's MatMulNBits. All run in sessions on one thread, in turns; the shortest processor time
of that thread counts. Weights come from memory where a read of other memory precedes each call, and
a call of a small matrix, which brings the code back to the caches. The share is that of a loop that
only reads as many bytes as the weights and their scales have. It is compiled with the C compiler of
the system. ANYBIT_ISA selects an ISA level.
"""

import ctypes
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _measure import Call, arguments, best_times, machine, show, versions
from _roofs import assembled
from _sessions import bound_run
from onnx import TensorProto, helper, numpy_helper

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads

SHAPES = ((8192, 2048), (4096, 4096))
SMALL = (64, 64)
BLOCK = 32
FORMATS = {
    "W8": ("int8", 8.0),
    f"W4 block {BLOCK}": (f"int4 per-block {BLOCK}", 4 + 32 / BLOCK),
    "W3": ("int3", 3.0),
    "W2": ("int2", 2.0),
    "ternary": ("ternary", 2.0),
    "W1": ("bipolar", 1.0),
}
PEERS = {f"MatMulNBits, accuracy_level {level}": level for level in (0, 4)}
COLUMNS = ("matrix", "weights", "from cache", "from memory", "GB/s", "share of reads")
EVICTED = 2**30
READ = """.globl read
read:
1:
prefetcht0 1024(%rdi)
vmovdqu (%rdi),%ymm0
vmovdqu 32(%rdi),%ymm1
vmovdqu 64(%rdi),%ymm2
vmovdqu 96(%rdi),%ymm3
add $128,%rdi
sub $128,%rsi
ja 1b
vzeroupper
ret
"""


def make_float_model(depth: int, columns: int) -> onnx.ModelProto:
    """Return a MatMul of random weights."""
    random = np.random.default_rng(0)
    w = random.normal(0, 1, (depth, columns)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "gemv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def make_peer(depth: int, columns: int, accuracy_level: int) -> onnx.ModelProto:
    """Return a MatMulNBits of random codes."""
    random = np.random.default_rng(0)
    blocks = depth // BLOCK
    codes = random.integers(0, 256, (columns, blocks, BLOCK // 2)).astype(np.uint8)
    scales = random.uniform(0.5, 1, columns * blocks).astype(np.float32)
    sizes = {"K": depth, "N": columns, "bits": 4, "block_size": BLOCK}
    node = helper.make_node(
        *("MatMulNBits", ["x", "codes", "scales"], ["y"]),
        domain="com.microsoft",
        accuracy_level=accuracy_level,
        **sizes,
    )
    graph = helper.make_graph(
        [node],
        "gemv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
        [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(scales, "scales")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def make_calls(depth: int, columns: int, folder: Path) -> dict[str, Call]:
    """Return a run of each format."""
    x = np.random.default_rng(1).normal(0, 1, (1, depth)).astype(np.float32)
    model, calls = make_float_model(depth, columns), dict[str, Call]()
    for name, (weights, _) in FORMATS.items():
        quantized = anybit.quantize(
            model, weights=weights, activations="int8 dynamic", effort="fast"
        )
        options = onnxruntime.SessionOptions()
        anybit.onnxruntime.register(options)
        anybit.compile(quantized).save(folder / "compiled.onnx")
        calls[name] = bound_run(onnx.load(folder / "compiled.onnx"), x, options)
    for name, level in PEERS.items():
        calls[name] = bound_run(make_peer(depth, columns, level), x)
    return calls


def time_from_memory(
    calls: Mapping[str, Call], small: Mapping[str, Call], rounds: int, evict: Call, clock: Call
) -> dict[str, float]:
    """Return the shortest time of a call after other memory was read to the caches."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            evict()
            small[name]()
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best


def measure(
    depth: int, columns: int, rounds: int, read: ctypes.CDLL, folder: Path
) -> list[tuple[str, ...]]:
    """Return the rows of the table for a matrix."""
    calls = make_calls(depth, columns, folder)
    other, own = np.ones(EVICTED, np.uint8), np.ones(depth * columns, np.uint8)
    evict = partial(read.read, ctypes.c_void_p(other.ctypes.data), ctypes.c_size_t(EVICTED))
    sizes = {name: depth * columns * bits / 8 for name, (_, bits) in FORMATS.items()}
    sizes |= dict.fromkeys(PEERS, depth * columns * (4 + 32 / BLOCK) / 8)
    reads = {
        f"read {size:.0f}": partial(
            read.read, ctypes.c_void_p(own.ctypes.data), ctypes.c_size_t(int(size) // 128 * 128)
        )
        for size in sorted(set(sizes.values()))
    }
    small = make_calls(*SMALL, folder)
    small |= {
        name: partial(read.read, ctypes.c_void_p(own.ctypes.data), ctypes.c_size_t(128))
        for name in reads
    }
    near = best_times(calls, rounds, clock=time.thread_time)
    far = time_from_memory({**calls, **reads}, small, rounds, evict, time.thread_time)
    return [
        (
            f"{depth} x {columns}",
            name,
            f"{near[name] * 1e6:.0f} us",
            f"{far[name] * 1e6:.0f} us",
            f"{size / far[name] / 1e9:.1f}",
            f"{100 * far[f'read {size:.0f}'] / far[name]:.0f} %",
        )
        for name, size in sizes.items()
    ]


def main() -> None:
    """Measure all matrices."""
    parser = arguments(__doc__)
    options = parser.parse_args()
    set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        read = assembled(READ, place)
        if read is None:
            raise SystemExit("no C compiler: set CC")
        rows = [row for shape in SHAPES for row in measure(*shape, options.rounds, read, place)]
    title = f"{machine()}, {versions('onnxruntime')}, one thread"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
