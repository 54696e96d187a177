# SPDX-License-Identifier: Apache-2.0
"""Speed of one row times a matrix, with weights from a cache and from memory.

    python benchmarks/gemv.py
    python benchmarks/gemv.py --llama build/src/libggml.so

Weights of 8 to 1 bits and in blocks, with `int8 dynamic` activations, compiled by anybit, beside
ONNX Runtime's MatMulNBits, and beside ggml, the library of llama.cpp, where it is built. All run on
one thread, in turns; the shortest processor time of that thread counts. Weights come from memory
where a read of other memory precedes each call. A call of a small matrix then brings the code back
to the caches, and a read the row. The share is that of a loop that only reads as many bytes as the
weights and their scales have, from large pages. It is compiled with the C compiler of the system.
ANYBIT_ISA selects an ISA level.
"""

import ctypes
import mmap
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _llama import BITS, Library
from _measure import Call, arguments, best_times, machine, show, versions
from _roofs import assembled
from _sessions import bound_run
from onnx import TensorProto, helper, numpy_helper

import anybit
import anybit.onnxruntime
from anybit._native import set_num_threads

SHAPES = ((8192, 2048), (4096, 4096))
SMALL = 256
BLOCK = 32
FORMATS = {
    "W8": ("int8", 8.0),
    f"W4 block {BLOCK}": (f"int4 per-block {BLOCK}", 4 + 32 / BLOCK),
    **{
        f"W{bits} block {BLOCK}, zero-points": (
            f"uint{bits} per-block {BLOCK}",
            bits + (32 + 8) / BLOCK,
        )
        for bits in (8, 4)
    },
    "W3": ("int3", 3.0),
    "W2": ("int2", 2.0),
    "ternary": ("ternary", 2.0),
    "W1": ("bipolar", 1.0),
}
PEERS = {
    f"MatMulNBits, {bits} bits{', zero-points' if zeros else ''}": (bits, zeros)
    for bits, zeros in ((8, False), (4, False), (2, False), (8, True), (4, True))
}
COLUMNS = ("matrix", "weights", "from cache", "from memory", "GB/s", "share of reads")
EVICTED = 2**30
LARGE_PAGE = 2**21
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


def make_peer(depth: int, columns: int, bits: int, zeros: bool = False) -> onnx.ModelProto:
    """Return a MatMulNBits of random codes, perhaps with zero-points, which rounds x to 8 bits."""
    random = np.random.default_rng(0)
    blocks = depth // BLOCK
    codes = random.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.5, 1, columns * blocks).astype(np.float32)
    constants = {"codes": codes, "scales": scales}
    if zeros:
        packed = random.integers(0, 256, (columns, -(-blocks * bits // 8)))
        constants["zero_points"] = packed.astype(np.uint8)
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": BLOCK}
    node = helper.make_node(
        *("MatMulNBits", ["x", *constants], ["y"]),
        domain="com.microsoft",
        accuracy_level=4,
        **sizes,
    )
    graph = helper.make_graph(
        [node],
        "gemv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def make_calls(
    x: np.ndarray, columns: int, folder: Path, llama: Library | None
) -> dict[str, tuple[float, Call]]:
    """Return the bits of a weight and a run of each format, with the row x."""
    model, calls = make_float_model(x.shape[1], columns), dict[str, tuple[float, Call]]()
    for name, (weights, bits) in FORMATS.items():
        quantized = anybit.quantize(
            model, weights=weights, activations="int8 dynamic", effort="fast"
        )
        options = onnxruntime.SessionOptions()
        anybit.onnxruntime.register(options)
        anybit.compile(quantized).save(folder / "compiled.onnx")
        calls[name] = bits, bound_run(onnx.load(folder / "compiled.onnx"), x, options)
    for name, (number, zeros) in PEERS.items():
        peer = make_peer(x.shape[1], columns, number, zeros)
        calls[name] = number + (32 + number * zeros) / BLOCK, bound_run(peer, x)
    if llama is not None:
        w = np.random.default_rng(0).normal(0, 1, (columns, x.shape[1])).astype(np.float32)
        for (form, layout), call in llama.products(w, x).items():
            calls[f"llama.cpp {form}, {layout}"] = BITS[form], call
    return calls


def make_memory(size: int) -> np.ndarray:
    """Return bytes on large pages, where the system has some."""
    region = mmap.mmap(-1, size + LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(region, np.uint8)
    memory[:] = 1
    start = -memory.ctypes.data % LARGE_PAGE
    return memory[start : start + size]


def time_from_memory(
    calls: Mapping[str, Call], prepare: Mapping[str, Call], rounds: int, evict: Call, clock: Call
) -> dict[str, float]:
    """Return the shortest time of a call after other memory was read to the caches."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            evict()
            prepare[name]()
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best


def measure(
    depth: int, columns: int, rounds: int, read: ctypes.CDLL, folder: Path, llama: Library | None
) -> list[tuple[str, ...]]:
    """Return the rows of the table for a matrix."""

    def reader(memory: np.ndarray) -> Call:
        start, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory))
        return lambda memory=memory: read.read(start, size)

    x = np.random.default_rng(1).normal(0, 1, (1, depth)).astype(np.float32)
    made = make_calls(x, columns, folder, llama)
    small = make_calls(np.ones((1, SMALL), np.float32), SMALL, folder, llama)
    own, row = make_memory(depth * columns * 9 // 8), reader(x.view(np.uint8)[0])
    sizes = {name: int(depth * columns * bits / 8) // 128 * 128 for name, (bits, _) in made.items()}
    calls = {name: call for name, (_, call) in made.items()}
    reads = {f"read {size}": reader(own[:size]) for size in set(sizes.values())}
    prepare = {name: (lambda call=call: (call(), row())) for name, (_, call) in small.items()}
    near = best_times(calls, rounds, clock=time.thread_time)
    far = time_from_memory(
        {**calls, **reads},
        {**prepare, **dict.fromkeys(reads, row)},
        rounds,
        reader(make_memory(EVICTED)),
        time.thread_time,
    )
    return [
        (
            f"{depth} x {columns}",
            name,
            f"{near[name] * 1e6:.0f} us",
            f"{far[name] * 1e6:.0f} us",
            f"{size / far[name] / 1e9:.1f}",
            f"{100 * far[f'read {size}'] / far[name]:.0f} %",
        )
        for name, size in sizes.items()
    ]


def main() -> None:
    """Measure all matrices."""
    parser = arguments(__doc__)
    parser.add_argument("--llama", type=Path, help="built libggml of llama.cpp (default: none)")
    options = parser.parse_args()
    set_num_threads(1)
    llama = Library(options.llama) if options.llama else None
    if llama is None:
        print("llama.cpp is left out: build its folder ggml, and pass libggml with --llama")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        read = assembled(READ, place)
        if read is None:
            raise SystemExit("no C compiler: set CC")
        rows = [
            row for shape in SHAPES for row in measure(*shape, options.rounds, read, place, llama)
        ]
    title = f"{machine()}, {versions('onnxruntime')}, one thread"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
