# SPDX-License-Identifier: Apache-2.0
"""Speed of compiled low-bit networks relative to ONNX Runtime.

A compiled network and its peers take turns in one process, on one thread; the shortest time of a
whole call counts. Ours is `Model.run` after `anybit.compile`; the peers have IO binding.

    float32   a float network of the same shape, with batch normalization folded
    int8      the same with QLinearConv and QGemm, scales per channel. It requantizes by a float
              factor, so its outputs are close to those of the float graph, but not equal

With a C compiler, the last column is the time that the best instruction loops of the ISA level need
for the same products (`_roofs.py`), over ours.

On a machine that others use, `--processor-time` leaves out the time in which they run.

The second table has the cost of compiling, and the memory of the compiled network.

Networks of the QONNX zoo are read from the folder ANYBIT_TEST_MODELS; `_layers.py` has the others.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from _layers import CNV, KWS, TFC, Network, build_model
from _measure import Call, Clock, arguments, best_times, machine, models_folder, show, versions
from _peers import Float32, Int8
from _quantized import NETWORKS, quantized_model
from _roofs import least_seconds, roofs
from _sessions import bound_run

import anybit
from anybit import _native
from anybit.compiler.program.network import Network as Kernels
from anybit.compiler.program.program import Product
from anybit.text import format_duration

# Networks of the zoo, with the shape of their peers and the batch sizes.
ZOO = {
    "TFC_1W1A": (TFC, (1, 64)),
    "TFC_2W2A": (TFC, (1, 64)),
    "kwsmlp_w3a3": (KWS, (1, 64)),
    "cnv_1w1a": (CNV, (1,)),
}
SPEED_COLUMNS = ("network", "batch", "ours", "over float32", "over int8", "share of the roof")
COST_COLUMNS = (
    *("network", "compile time", "layers", "equal to the float graph"),
    *("float weights", "packed weights", "compiled network"),
)


@dataclass(frozen=True)
class Workload:
    """Network of the zoo or of NETWORKS, its batch size, and the shape of its peers."""

    network: str
    batch: int
    shape: Network

    @property
    def model(self) -> onnx.ModelProto | anybit.CleanResult:
        """Return the QONNX model for this batch size."""
        if self.network in NETWORKS:
            return quantized_model(self.network, self.batch)
        path = models_folder() / f"{self.network}.onnx"
        return anybit.clean(path, batch=self.batch, keep_quantizers=True)

    def peers(self, x: np.ndarray) -> dict[str, Call]:
        """Return a run of each form of ONNX Runtime."""
        rows = x.reshape(self.batch, *self.shape.row)
        return {
            name: bound_run(build_model(self.shape, writer, self.batch), rows)
            for name, writer in {"float32": Float32(), "int8": Int8()}.items()
        }


WORKLOADS = (
    *(Workload(name, batch, shape) for name, (shape, sizes) in ZOO.items() for batch in sizes),
    *(Workload(name, 1, shape) for name, (shape, _) in NETWORKS.items() if name != "CNV 1W1A"),
)


@dataclass(frozen=True)
class Measurement:
    """Seconds per call of each side, and properties of the compiled network; sizes in bytes.

    Attributes:
        multiplications: Of a call, per kernel.
    """

    workload: Workload
    times: dict[str, float]
    multiplications: dict[str, int]
    compile_time: float
    guarantees: str
    equal: bool
    float_weights: int
    packed_weights: int
    compiled: int


def measure(workload: Workload, rounds: int, clock: Clock) -> Measurement:
    """Compile a network and time it against its peers."""
    model = workload.model
    start = time.perf_counter()
    compiled = anybit.compile(model)
    compile_time = time.perf_counter() - start
    reference = anybit.load(model)
    x = np.random.default_rng(0).uniform(-1, 1, reference.inputs[0].shape).astype(np.float32)
    (actual,), (expected,) = compiled.run(x).values(), reference.run(x).values()
    calls: dict[str, Call] = {"ours": lambda: compiled.run(x), **workload.peers(x)}
    return Measurement(
        workload,
        best_times(calls, rounds, 0.02, clock),
        _multiplications(compiled, workload.batch),
        compile_time,
        ", ".join(f"{count} {name}" for name, count in compiled.report.guarantees.items()),
        bool(np.array_equal(actual, expected)),
        *_sizes(compiled),
    )


def _multiplications(compiled: anybit.CompiledModel, batch: int) -> dict[str, int]:
    """Return the multiplications of a call, per kernel."""
    counts: dict[str, int] = {}
    for program in compiled.report.programs:
        for stage in Kernels(program).describe()["stages"]:
            if count := stage["multiplications"] * batch:
                counts[stage["kernel"]] = counts.get(stage["kernel"], 0) + count
    return counts


def _sizes(compiled: anybit.CompiledModel) -> tuple[int, int, int]:
    """Return the bytes of weights in float32 and packed, and of the compiled network."""
    float_weights = packed_weights = total = 0
    for program in compiled.report.programs:
        for instruction in program.instructions:
            if isinstance(instruction, Product):
                float_weights += len(instruction.weights) * 8 // instruction.weight_bits * 4
                packed_weights += len(instruction.weights)
        total += sum(stage["bytes"] for stage in Kernels(program).describe()["stages"])
    return float_weights, packed_weights, total


def speed_row(result: Measurement, rates: Mapping[str, float]) -> tuple[str, ...]:
    """Return the time of a call, the speedup over each peer, and the share of the roof."""
    ours, workload = result.times["ours"], result.workload
    return (
        *(workload.network, str(workload.batch), format_duration(ours)),
        *(f"{result.times[peer] / ours:.1f} x" for peer in ("float32", "int8")),
        f"{least_seconds(result.multiplications, rates) / ours:.0%}" if rates else "-",
    )


def cost_row(result: Measurement) -> tuple[str, ...]:
    """Return the cost of compiling and of the compiled network."""
    sizes = (result.float_weights, result.packed_weights, result.compiled)
    return (
        result.workload.network,
        f"{result.compile_time:.2f} s",
        result.guarantees,
        "yes" if result.equal else "no",
        *(f"{size / 1024:.0f} KiB" for size in sizes),
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--processor-time", action="store_true", help="time of the thread alone")
    options = parser.parse_args()
    clock = time.thread_time if options.processor_time else time.perf_counter
    anybit.set_num_threads(1)
    print(f"{machine()}; {versions('onnxruntime', 'numpy')}; one thread")
    results = [
        measure(workload, options.rounds, clock)
        for workload in WORKLOADS
        if options.only in workload.network
    ]
    rates = roofs(_native.isa())
    rows = [speed_row(result, rates) for result in results]
    show("Whole calls", SPEED_COLUMNS, rows, options.markdown)
    costs = [cost_row(result) for result in results if result.workload.batch == 1]
    show("Compiling", COST_COLUMNS, costs, options.markdown)


if __name__ == "__main__":
    main()
