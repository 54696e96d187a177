# SPDX-License-Identifier: Apache-2.0
"""Throughput of the low-bit matrix product kernels.

Each layer shape and pair of bit widths is measured in 10^9 multiplications a second (GMAC/s) on one
thread. The peers are ONNX Runtime's MatMul in float32 and MatMulInteger of the same matrices. Only
the product is timed, without quantizing its inputs: the network times its instructions.

With `--clock` in GHz, the last column is the share of the roofline. Per cycle, that is 64
multiplications of bytes per dot product unit (`--units`), or 512 pairs of bits in 1.5 cycles per
pair of bit planes.
"""

from dataclasses import dataclass

import numpy as np
from _measure import Call, arguments, best_times, machine, show, versions
from _sessions import bound_run
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network

# Index of the product among the instructions of its program.
PRODUCT = 1


@dataclass(frozen=True)
class Shape:
    """Convolution over `size` x `size` pixels; with a size of 1, a product of `rows` vectors."""

    name: str
    rows: int
    size: int
    source: int
    target: int
    kernel: int = 1
    depthwise: bool = False

    @property
    def terms(self) -> int:
        """Return the length of the reduction axis."""
        return self.kernel**2 * (1 if self.depthwise else self.source)

    @property
    def multiplications(self) -> int:
        """Return the number of multiplications of one call."""
        return self.rows * self.size**2 * self.terms * self.target


SHAPES = (
    Shape("CNV layer 28x28, 64 to 64, 3x3", 1, 28, 64, 64, 3),
    Shape("CNV layer 10x10, 128 to 128, 3x3", 1, 10, 128, 128, 3),
    Shape("CNV layer 3x3, 256 to 256, 3x3", 1, 3, 256, 256, 3),
    Shape("pointwise 112x112, 32 to 64", 1, 112, 32, 64),
    Shape("pointwise 14x14, 512 to 512", 1, 14, 512, 512),
    Shape("ResNet layer 56x56, 64 to 64, 3x3", 1, 56, 64, 64, 3),
    Shape("ResNet layer 7x7, 512 to 512, 3x3", 1, 7, 512, 512, 3),
    Shape("depthwise 14x14, 512, 3x3", 1, 14, 512, 512, 3, depthwise=True),
    Shape("vector 4096 to 4096", 1, 1, 4096, 4096),
    Shape("vector 784 to 64", 1, 1, 784, 64),
    Shape("64 vectors 784 to 64", 64, 1, 784, 64),
    Shape("64 vectors 256 to 256", 64, 1, 256, 256),
    Shape("64 vectors 4096 to 4096", 64, 1, 4096, 4096),
)


@dataclass(frozen=True)
class Codes:
    """Integer codes `lowest + step * index`, with the name of their type."""

    name: str
    lowest: int
    step: int
    levels: int

    @property
    def values(self) -> np.ndarray:
        """Return all codes in increasing order."""
        return (self.lowest + self.step * np.arange(self.levels)).astype(np.int32)


BIPOLAR = Codes("bipolar", -1, 2, 2)
TERNARY = Codes("ternary", -1, 1, 3)
UNSIGNED = {bits: Codes(f"u{bits}", 0, 1, 2**bits) for bits in (1, 2, 3, 4, 8)}
SIGNED = {bits: Codes(f"s{bits}", 1 - 2 ** (bits - 1), 1, 2**bits - 1) for bits in (3, 4, 8)}
# Weights, activations, and the number of pairs of bit planes: 0 for products of bytes.
PAIRS = (
    *((BIPOLAR, BIPOLAR, 1), (TERNARY, TERNARY, 2), (BIPOLAR, UNSIGNED[2], 2)),
    *((TERNARY, UNSIGNED[2], 4), (SIGNED[3], UNSIGNED[3], 0)),
    *((SIGNED[4], UNSIGNED[4], 0), (SIGNED[4], UNSIGNED[8], 0), (SIGNED[8], UNSIGNED[8], 0)),
)
SIDES = ("ours", "float32", "int8")
COLUMNS = ("layer", "weights x codes", "kernel", "time", *SIDES, "share of roofline")


def program(shape: Shape, weights: Codes, codes: Codes) -> p.Program:
    """Build a quantizer, a product, and the dequantization of one of its pixels."""
    random = np.random.default_rng(0)
    size, channels = shape.size, shape.target
    pad = shape.kernel // 2
    window = p.Window(shape.kernel, shape.kernel, 1, 1, 1, 1, pad, pad, pad, pad)
    bits = max(1, int(np.ceil(np.log2(weights.levels))))
    values = random.integers(0, weights.levels, (channels, shape.terms))
    flags = (values.reshape(-1, 1) >> np.arange(bits) & 1).astype(np.uint8)
    product = p.Product(
        0,
        1,
        window,
        shape.source if shape.depthwise else 1,
        bits,
        np.packbits(flags, bitorder="little"),
        weights.values,
        _requantization(weights.values[values], codes),
    )
    first, every = np.zeros(1, np.int32), np.arange(channels, dtype=np.int32)
    grid = codes.lowest, codes.step, codes.levels
    sizes = np.array([size, size, shape.source], np.int32)
    return p.Program(
        inputs=(p.Port(sizes, size, size, shape.source, 0),),
        outputs=(p.Port(np.array([channels], np.int32), 1, 1, channels, 0),),
        tensors=(
            p.Tensor(size, size, shape.source, *grid),
            p.Tensor(size, size, channels, *grid),
            p.Tensor(1, 1, channels, *grid),
        ),
        instructions=(
            _quantize(codes),
            product,
            p.Gather(1, 2, first, first, every, 0, 0),
            p.Dequantize(2, 0, codes.values.astype(np.float32)),
        ),
    )


def _quantize(codes: Codes) -> p.Quantize:
    thresholds = codes.values[1:].astype(np.float32) - np.float32(codes.step / 2)
    return p.Quantize(0, 0, np.ones(1, np.int32), thresholds, 0)


def _requantization(weights: np.ndarray, codes: Codes) -> p.Epilogue:
    """Return thresholds, or an affine function, over the likely range of the sums."""
    deviation = np.abs(codes.values).mean() * np.sqrt(np.square(weights).sum(1))
    middle = codes.values.mean() * weights.sum(1)
    if codes.levels > 4:
        gain = (codes.levels / (4 * deviation)).astype(np.float32)
        offset = (codes.levels / 2 - middle * gain).astype(np.float32)
        return p.Affine(gain, offset, 0)
    steps = np.linspace(-1, 1, codes.levels + 1)[1:-1]
    places = middle[:, None] + deviation[:, None] * steps
    directions = np.ones(len(weights), np.int32)
    return p.Thresholds(directions, np.ceil(places).astype(np.int32).ravel())


@dataclass
class TimedProduct:
    """Network with one product; a call records the shortest time of the product."""

    network: Network
    x: np.ndarray
    seconds: float = float("inf")

    def __call__(self) -> None:
        _, times = self.network.run_timed([self.x])
        self.seconds = min(self.seconds, times[PRODUCT])

    @property
    def kernel(self) -> str:
        """Return the name of the selected kernel."""
        return str(self.network.describe()["stages"][PRODUCT]["kernel"])


def timed_product(shape: Shape, weights: Codes, codes: Codes) -> TimedProduct:
    """Build the network of one shape and pair of types, with random inputs."""
    sizes = (shape.rows, shape.size, shape.size, shape.source)
    x = np.random.default_rng(1).uniform(codes.values[0], codes.values[-1], sizes)
    return TimedProduct(Network(program(shape, weights, codes)), x.astype(np.float32))


def peers(shape: Shape) -> dict[str, Call]:
    """Return MatMul and MatMulInteger of the windows, as a matrix (after im2col)."""
    if shape.depthwise:
        return {}
    random = np.random.default_rng(0)
    sizes = (shape.rows * shape.size**2, shape.terms)
    weights = random.integers(-7, 8, (shape.terms, shape.target))
    x = random.integers(0, 16, sizes)
    return {
        "float32": _product("MatMul", x.astype(np.float32), weights.astype(np.float32)),
        "int8": _product("MatMulInteger", x.astype(np.uint8), weights.astype(np.int8)),
    }


def _product(op_type: str, x: np.ndarray, weights: np.ndarray) -> Call:
    make = helper.make_tensor_value_info
    floats = x.dtype == np.float32
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"])],
        "product",
        [make("x", TensorProto.FLOAT if floats else TensorProto.UINT8, x.shape)],
        [make("y", TensorProto.FLOAT if floats else TensorProto.INT32, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bound_run(model, x)


def rows(shape: Shape, rounds: int, clock: float, units: int) -> list[tuple[str, ...]]:
    """Time all pairs of types for one layer shape."""
    result = []
    calls = peers(shape)
    for weights, codes, planes in PAIRS:
        product = timed_product(shape, weights, codes)
        times = {**best_times({"ours": product, **calls}, rounds), "ours": product.seconds}
        rates = {name: shape.multiplications / time / 1e9 for name, time in times.items()}
        roofline = clock * (512 / 1.5 / planes if planes else 64 * units)
        result.append(
            (
                shape.name,
                f"{weights.name} x {codes.name}",
                product.kernel,
                f"{product.seconds * 1e6:.2f} us",
                *(f"{rates[side]:.0f}" if side in rates else "-" for side in SIDES),
                f"{rates['ours'] / roofline:.0%}" if roofline else "-",
            )
        )
    return result


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--clock", type=float, default=0.0, help="clock of the processor in GHz")
    parser.add_argument("--units", type=int, default=1, help="dot product units for bytes")
    options = parser.parse_args()
    anybit.set_num_threads(1)
    print(f"{machine()}; {versions('onnxruntime', 'numpy')}; one thread")
    lines = [
        row
        for shape in SHAPES
        if options.only in shape.name
        for row in rows(shape, options.rounds, options.clock, options.units)
    ]
    show("One product, GMAC/s", COLUMNS, lines, options.markdown)


if __name__ == "__main__":
    main()
