# SPDX-License-Identifier: Apache-2.0
"""How much faster does a compiled network of few bits run than in ONNX Runtime?

Each network runs as whole calls, in turns with its peers in one process, on one thread each unless
it says otherwise; the shortest time of each counts. The peers have IO binding, so that they neither
look names up nor allocate results; ours is `Model.run` of what `anybit.compile` gives. The peers:

    carried   the same network, integers in floats, with its weights quantized before: the fastest
              of our operators with and without optimization, and of standard operators
    float32   a float network of the same shape, with batch normalization in its weights
    int8      the same in the runtime's 8-bit integers: QLinearConv, QGemm, scales per channel. It
              rounds by float factors, so that it is near the float graph; ours equals it

Networks of the QONNX zoo are read from the folder ANYBIT_TEST_MODELS; `_layers.py` makes the rest.
"""

import time
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from _layers import CNV, KWS, TFC, Network, written
from _measure import Call, arguments, best_times, machine, models_folder, show, versions
from _peers import Float32, Int8
from _quantized import NETWORKS, quantized

import anybit
import anybit.onnxruntime
from anybit.compiler.program.network import Network as Kernels
from anybit.compiler.program.program import Product

OPTIMIZED = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
MOST_SECONDS, MOST_MORE = 5.0, 0.05
WRITTEN = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        network: A file of the zoo, or one of NETWORKS.
        batch: The rows of x.
        targets: What each peer's time over ours should be at least.
        shape: The network whose float32 and int8 forms are the peers.
    """

    network: str
    batch: int
    targets: dict[str, float]
    shape: Network

    @property
    def model(self) -> onnx.ModelProto | anybit.Cleaned:
        """The model for that many rows, with its weights still to be quantized."""
        if self.network in NETWORKS:
            return quantized(self.network, self.batch)
        path = models_folder() / f"{self.network}.onnx"
        return anybit.clean(path, batch=self.batch, keep_quantizers=True)

    def peers(self, x: np.ndarray) -> dict[str, Call]:
        rows = x.reshape(self.batch, *self.shape.row)
        writers = {"float32": Float32(), "int8": Int8()}
        calls = {
            name: bound(session(written(self.shape, writer, self.batch)), rows)
            for name, writer in writers.items()
        }
        return calls | (carried(anybit.clean(self.model), x) if "carried" in self.targets else {})


def _rows() -> list[Row]:
    multilayers = {
        "TFC_1W1A": (TFC, {1: 20, 64: 12}),
        "TFC_2W2A": (TFC, {1: 12, 64: 6}),
        "kwsmlp_w3a3": (KWS, {1: 8, 64: 4}),
    }
    rows = [
        Row(name, batch, {"carried": at_least}, shape)
        for name, (shape, targets) in multilayers.items()
        for batch, at_least in targets.items()
    ]
    rows.append(Row("cnv_1w1a", 1, {"float32": 18, "int8": 5}, CNV))
    targets = {
        "CNV 2W2A": {"float32": 8.5, "int8": 2.5},
        "MobileNetV1 W4A4": {"float32": 3, "int8": 1.15},
        "ResNet-18 W4A4": {"float32": 3, "int8": 1.0},
        "ResNet-18 W8A8": {"float32": 3, "int8": 1.0},
        "GEMV W4A8": {"float32": 14},
        "GEMV W2A2": {"float32": 35},
        "GEMV W1A1": {"float32": 80},
    }
    return rows + [Row(name, 1, each, NETWORKS[name][0]) for name, each in targets.items()]


ROWS = _rows()


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def bound(session: onnxruntime.InferenceSession, x: np.ndarray) -> Call:
    """A run of the session with input and output in place."""
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    binding = session.io_binding()
    binding.bind_ortvalue_input(taken.name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
    out = onnxruntime.OrtValue.ortvalue_from_numpy(session.run(None, {taken.name: x})[0])
    binding.bind_ortvalue_output(given.name, out)
    return lambda: session.run_with_iobinding(binding)


def carried(model: anybit.Cleaned, x: np.ndarray) -> dict[str, Call]:
    """The fastest way to run the graph in floats."""
    calls: dict[str, Call] = {}
    for name, level in (("as written", WRITTEN), ("optimized", OPTIMIZED)):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = level
        made = anybit.onnxruntime.session(model, session_options=options)
        calls[name] = bound(made, x)
    standard = anybit.convert(model, to="standard")
    calls["standard operators"] = bound(session(ir.to_proto(standard.model)), x)
    times = best_times(calls, rounds=5)
    return {"carried": calls[min(times, key=times.__getitem__)]}


@dataclass(frozen=True)
class Measured:
    """One row: seconds per call of each side, and what there is to know of ours."""

    row: Row
    times: dict[str, float]
    compiling: float
    guarantees: str
    equal: bool
    float_bytes: int
    code_bytes: int
    kept_bytes: int


def measured(row: Row, rounds: int) -> Measured:
    model = row.model
    start = time.perf_counter()
    compiled = anybit.compile(model)
    compiling = time.perf_counter() - start
    floats = anybit.load(model)
    x = np.random.default_rng(0).uniform(-1, 1, floats.inputs[0].shape).astype(np.float32)
    (given,), (expected,) = compiled.run(x).values(), floats.run(x).values()
    calls: dict[str, Call] = {"ours": lambda: compiled.run(x), **row.peers(x)}
    return Measured(
        row,
        best_times(calls, rounds, 0.02),
        compiling,
        ", ".join(f"{count} {name}" for name, count in compiled.report.guarantees.items()),
        bool(np.array_equal(given, expected)),
        *_memory(compiled),
    )


def _memory(compiled: anybit.Compiled) -> tuple[int, int, int]:
    """The bytes of the weights as floats, without gaps, and of all that a network keeps."""
    floats = codes = kept = 0
    for program in compiled.report.programs:
        for each in program.instructions:
            if isinstance(each, Product):
                floats += len(each.weights) * 8 // each.weight_bits * 4
                codes += len(each.weights)
        kept += sum(stage["bytes"] for stage in Kernels(program).describe()["stages"])
    return floats, codes, kept


def lines(result: Measured) -> list[tuple[str, ...]]:
    ours = result.times["ours"]
    found = []
    for peer, seconds in result.times.items():
        if peer == "ours":
            continue
        at_least, ratio = result.row.targets.get(peer), seconds / ours
        wanted = "-" if at_least is None else f"{at_least:g} x"
        met = "-" if at_least is None else "yes" if ratio >= at_least else "no"
        times = f"{seconds * 1e6:.1f} us", f"{ours * 1e6:.2f} us"
        found.append(
            (result.row.network, str(result.row.batch), peer, *times, f"{ratio:.1f} x", wanted, met)
        )
    return found


def costs(result: Measured) -> tuple[str, ...]:
    return (
        result.row.network,
        f"{result.compiling:.2f} s",
        "yes" if result.compiling <= MOST_SECONDS else "no",
        result.guarantees,
        "yes" if result.equal else "no",
        f"{result.float_bytes / 1024:.0f} KiB",
        f"{result.kept_bytes / result.float_bytes:.3f}",
        f"{result.code_bytes / result.float_bytes:.3f}",
        "yes" if result.kept_bytes <= result.code_bytes + MOST_MORE * result.float_bytes else "no",
    )


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    options = parser.parse_args()
    anybit.set_num_threads(1)
    print(f"{machine()}; {versions('onnxruntime', 'numpy')}; one thread")
    results = [measured(row, options.rounds) for row in ROWS if options.only in row.network]
    show(
        "Whole calls",
        ("network", "batch", "against", "its time", "ours", "ratio", "at least", "met"),
        [line for result in results for line in lines(result)],
        options.markdown,
    )
    first = ("network", "to compile", "at most 5 s", "layers", "equal to the float graph")
    memory = ("float weights", "kept of that", "bits/32", "met")
    show(
        "What it takes",
        (*first, *memory),
        [costs(each) for each in results if each.row.batch == 1],
        options.markdown,
    )


if __name__ == "__main__":
    main()
