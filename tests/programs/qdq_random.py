# SPDX-License-Identifier: Apache-2.0
"""Outputs of quantized random networks in plain ONNX Runtime, at all optimization levels.

    python tests/programs/qdq_random.py FOLDER [--cases N] [--seed N] [--bare] [--only-make]
    PYTHON tests/programs/qdq_random.py FOLDER --judge

The first command quantizes random float networks on data of magnitudes 1e-3 to 1e5, converts them
to qdq and qcdq for several versions of ONNX Runtime, and keeps them in FOLDER with inputs and the
outputs of `anybit run`. The second compares them with the outputs of another ONNX Runtime with
default options; PYTHON needs NumPy and onnxruntime alone. It prints one line per different case and
a summary; the exit code is 1 if a case differs.

Equal means: within 1e-5 of the largest output. Sums in another order may move a float across a
rounding boundary of a later quantizer. Such an output must equal, element by element, the output of
the same level without integer operators (session.disable_quant_qdq = 1).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

WEIGHTS = ("int8", "int8", "int8 per-channel", "int7", "int7 per-channel", "int4", "int2")
ACTIVATIONS = ("uint8", "int8", "int8", "uint8", "int7", "int4", "int16", None)
RUNTIMES = {"1.17": 20, "1.20": 21, "1.26": 25}
TOLERANCE = 1e-5
ROWS, SAMPLES = 16, 32
DISABLE = "session.disable_quant_qdq"
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def make(folder: Path, seed: int, *, fenced: bool = True) -> None:
    """Write the case of a seed: NAME.onnx, and NAME.npz with inputs, outputs and facts."""
    import onnx_ir as ir
    import support_path  # noqa: F401
    from random_floats import FloatGraph

    import anybit

    random = np.random.default_rng(seed)
    graph = FloatGraph(seed)
    magnitude = np.float32(10 ** random.uniform(-3, 5))
    rectified = random.random() < 0.5
    proto = without_foreign(graph.proto)
    if rectified:  # unsigned activations then need no zero point
        proto = rectify(proto)
    data = magnitude * graph.rows(SAMPLES, seed + 1)
    words = {
        "weights": str(random.choice(WEIGHTS)),
        "activations": ACTIVATIONS[random.integers(len(ACTIVATIONS))],
    }
    quantized = anybit.quantize(proto, data, effort="fast", **words)
    x = magnitude * graph.rows(ROWS, seed + 2)
    expected = anybit.load(quantized).run({"x": x})
    version = str(random.choice(list(RUNTIMES)))
    form = "qcdq" if random.random() < 0.3 else "qdq"
    runtime = f"onnxruntime={version}" if fenced else "any"
    limit = RUNTIMES[version]
    converted = anybit.convert(quantized, to=form, runtime=runtime, opset_limit=limit)
    facts = {"version": version, "magnitude": float(magnitude), "form": form, **words}
    facts["remark"] = converted.remarks[-1] if converted.remarks else ""
    (folder / f"{seed}.onnx").write_bytes(ir.to_proto(converted.model).SerializeToString())
    np.savez(folder / f"{seed}.npz", x=x, facts=json.dumps(facts), **expected)


def without_foreign(proto: Any) -> Any:
    """Replace the operators of other domains by standard ones."""
    kinds = {"Gelu": "Tanh", "QuickGelu": "Sigmoid", "FusedMatMul": "MatMul"}
    for node in proto.graph.node:
        if node.domain:
            node.domain, node.op_type = "", kinds[node.op_type]
    return proto


def rectify(proto: Any) -> Any:
    """Insert a Relu before each MatMul, Gemm and convolution."""
    from onnx import helper

    nodes = []
    for index, node in enumerate(proto.graph.node):
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            name = f"{node.input[0]}_relu_{index}"
            nodes.append(helper.make_node("Relu", [node.input[0]], [name], f"{name}_node"))
            node.input[0] = name
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def run(file: bytes, level: str, x: np.ndarray, disable: bool) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if disable:
        options.add_session_config_entry(DISABLE, "1")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


def difference(folder: Path, name: str) -> tuple[float, str]:
    """Return the largest difference relative to the largest output, and its location."""
    file = (folder / f"{name}.onnx").read_bytes()
    stored = np.load(folder / f"{name}.npz")
    outputs = [key for key in stored.files if key not in ("x", "facts")]
    worst = 0.0, ""
    for level in LEVELS:
        try:
            actual = run(file, level, stored["x"], disable=False)
            floats = run(file, level, stored["x"], disable=True)
        except Exception as error:
            return np.inf, f"{level}: {error}"[:200]
        for key in outputs:
            expected = stored[key].astype(np.float64)
            largest = float(np.abs(expected).max(initial=0)) or 1.0
            got = actual[key].astype(np.float64)
            apart = np.minimum(np.abs(got - expected), np.abs(got - floats[key]))
            share = float(apart.max(initial=0)) / largest
            if not np.isfinite(share):
                share = np.inf
            if share > worst[0]:
                worst = share, f"{level} {key}"
    return worst


def judge(folder: Path) -> int:
    installed = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    count, different, fenced = 0, 0, 0
    for path in sorted(folder.glob("*.npz"), key=lambda path: int(path.stem)):
        facts = json.loads(str(np.load(path)["facts"]))
        if tuple(map(int, facts["version"].split("."))) > installed:
            continue
        count += 1
        fenced += "a Min fences" in facts["remark"]
        share, where = difference(folder, path.stem)
        if share > TOLERANCE:
            different += 1
            print(f"{path.stem}: differs by {share:.2g} of the largest, {where}; {facts}")
    print(
        f"ONNX Runtime {onnxruntime.__version__}: {count} networks, {fenced} with fences, "
        f"{different} differ"
    )
    return int(different > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=60, help="number of networks")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first network")
    parser.add_argument(
        "--bare", action="store_true", help="omit the fences; outputs must then differ"
    )
    parser.add_argument("--only-make", action="store_true", help="skip the comparison")
    parser.add_argument("--judge", action="store_true", help="compare existing files")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not options.judge:
        for seed in range(options.seed, options.seed + options.cases):
            make(options.folder, seed, fenced=not options.bare)
    return 0 if options.only_make else judge(options.folder)


if __name__ == "__main__":
    sys.exit(main())
