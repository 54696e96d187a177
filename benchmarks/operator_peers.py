# SPDX-License-Identifier: Apache-2.0
"""Speed of the NumPy operators relative to other libraries.

Ours and a peer quantize the same float32 array in turns, on one thread. Peers that are not
installed are skipped and named. ONNX Runtime has IO binding, so that neither side allocates its
output.
"""

import numpy as np
from _measure import Call, arguments, best_times, machine, show, versions

import anybit

E4M3 = anybit.formats.float8_e4m3fn
# By peer: its call, and our operator.
Contests = dict[str, tuple[Call, str]]


def quantize_linear(x: np.ndarray, code_type: str, *, dequantize: bool) -> Call:
    """Return a run of QuantizeLinear, with or without DequantizeLinear, in ONNX Runtime."""
    from _sessions import bound_run
    from onnx import TensorProto, helper

    code = getattr(TensorProto, code_type)
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"])]
    if dequantize:
        nodes.append(helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"]))
    result, dtype = ("y", TensorProto.FLOAT) if dequantize else ("codes", code)
    graph = helper.make_graph(
        nodes,
        "quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info(result, dtype, [None])],
        [
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1]),
            helper.make_tensor("zero", code, [], [0]),
        ],
    )
    opsets = [helper.make_opsetid("", 19)]
    return bound_run(helper.make_model(graph, opset_imports=opsets, ir_version=9), x)


def qonnx(x: np.ndarray) -> Contests:
    from qonnx.custom_op.general.floatquant import float_quant
    from qonnx.custom_op.general.intquant import int_quant

    scale, zero, bits = np.float32([0.1]), np.float32([0]), np.float32([4])
    e, m, bias, largest = (np.float32(value) for value in E4M3)
    return {
        "QONNX int_quant": (
            lambda: int_quant(x, scale, zero, bits, 1, 0, "ROUND"),
            "int_quant",
        ),
        "QONNX float_quant": (
            lambda: float_quant(x, scale, e, m, bias, True, largest, rounding_mode="ROUND"),
            "float_quant",
        ),
    }


def pytorch(x: np.ndarray) -> Contests:
    import torch

    torch.set_num_threads(1)
    tensor = torch.from_numpy(x)
    return {
        "torch.fake_quantize_per_tensor_affine": (
            lambda: torch.fake_quantize_per_tensor_affine(tensor, 0.1, 0, -8, 7),
            "int_quant",
        )
    }


def onnxruntime(x: np.ndarray) -> Contests:
    return {
        "ONNX Runtime Q + DQ int8": (
            quantize_linear(x, "INT8", dequantize=True),
            "int_quant 8 bit",
        ),
        "ONNX Runtime Q + DQ float8": (
            quantize_linear(x, "FLOAT8E4M3FN", dequantize=True),
            "float_quant",
        ),
        "ONNX Runtime QuantizeLinear int8": (
            quantize_linear(x, "INT8", dequantize=False),
            "dynamic_quantize",
        ),
    }


def ml_dtypes(x: np.ndarray) -> Contests:
    import ml_dtypes

    return {
        "ml_dtypes float8_e4m3fn round trip": (
            lambda: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
            "float_quant",
        )
    }


def contests(x: np.ndarray) -> Contests:
    """Return the calls of all peers that are installed."""
    calls: Contests = {}
    for peer in (qonnx, pytorch, onnxruntime, ml_dtypes):
        try:
            calls |= peer(x)
        except ImportError as error:
            print(f"skipped: {error.name} is not installed")
    return calls


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=16 << 20, help="elements of the array")
    options = parser.parse_args()
    anybit.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal(options.elements, dtype=np.float32)
    out, codes = np.empty_like(x), np.empty(x.shape, np.int8)
    operators: dict[str, Call] = {
        "int_quant": lambda: anybit.int_quant(x, 0.1, 0, 4, out=out),
        "int_quant 8 bit": lambda: anybit.int_quant(x, 0.1, 0, 8, out=out),
        "float_quant": lambda: anybit.float_quant(x, 0.1, *E4M3, out=out),
        "dynamic_quantize": lambda: anybit.dynamic_quantize(x, [0.1], out=codes),
    }
    rows = []
    for peer, (call, operator) in contests(x).items():
        times = best_times({"peer": call, "ours": operators[operator]}, options.rounds)
        traffic = x.nbytes + (codes.nbytes if operator == "dynamic_quantize" else out.nbytes)
        peer_rate, our_rate = (traffic / times[side] / 1e9 for side in ("peer", "ours"))
        speedup = f"{times['peer'] / times['ours']:.1f} x"
        rows.append((peer, f"{peer_rate:.2f} GB/s", operator, f"{our_rate:.1f} GB/s", speedup))
    packages = versions("numpy", "qonnx", "onnxruntime", "torch", "ml_dtypes")
    print(f"{machine()}; {anybit._native.isa()}; {packages}")
    title = f"{options.elements >> 10} Ki float32, one thread, bytes read and written over time"
    show(title, ("peer", "peer's rate", "ours", "our rate", "speedup"), rows, options.markdown)


if __name__ == "__main__":
    main()
