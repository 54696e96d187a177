# SPDX-License-Identifier: Apache-2.0
"""How much faster are the operators than what people use today?

The same float32 array through ours and through each peer, in turns, one thread each. Peers that are
not installed are left out and named. ONNX Runtime models run with IO binding, so that neither side
allocates its output.
"""

import numpy as np
from _measure import Call, arguments, best_times, machine, show, versions

import anybit

E4M3 = anybit.formats.float8_e4m3fn


def quantize_dequantize(x: np.ndarray, out: np.ndarray, scale: float, code_type: str) -> Call:
    """QuantizeLinear and DequantizeLinear in ONNX Runtime."""
    import onnx
    from onnx import TensorProto, helper

    code = getattr(TensorProto, code_type)
    zero = helper.make_tensor("zero", code, [], [0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantize_dequantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
        [helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]), zero],
    )
    return _bound(
        onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]), x, out
    )


def quantize(x: np.ndarray, out: np.ndarray, scale: float) -> Call:
    """QuantizeLinear to int8 in ONNX Runtime."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [None])],
        [
            helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]),
            helper.make_tensor("zero", TensorProto.INT8, [], [0]),
        ],
    )
    return _bound(
        onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]), x, out
    )


def _bound(model: object, x: np.ndarray, out: np.ndarray) -> Call:
    import onnxruntime

    model.ir_version = 9  # type: ignore[attr-defined]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(),  # type: ignore[attr-defined]
        options,
        providers=["CPUExecutionProvider"],
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("y", "cpu", 0, out.dtype, out.shape, out.ctypes.data)

    def run() -> np.ndarray:
        session.run_with_iobinding(binding)
        return out  # also keeps alive what is bound by address

    return run


def qonnx_functions(x: np.ndarray) -> dict[str, tuple[Call, str]]:
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


def torch_fake_quantize(x: np.ndarray) -> dict[str, tuple[Call, str]]:
    import torch

    torch.set_num_threads(1)
    tensor = torch.from_numpy(x)
    return {
        "torch.fake_quantize_per_tensor_affine": (
            lambda: torch.fake_quantize_per_tensor_affine(tensor, 0.1, 0, -8, 7),
            "int_quant",
        )
    }


def onnxruntime_pairs(x: np.ndarray, out: np.ndarray) -> dict[str, tuple[Call, str]]:
    codes = np.empty(x.shape, np.int8)
    return {
        "ONNX Runtime Q + DQ int8": (quantize_dequantize(x, out, 0.1, "INT8"), "int_quant 8 bit"),
        "ONNX Runtime Q + DQ float8": (
            quantize_dequantize(x, out, 0.1, "FLOAT8E4M3FN"),
            "float_quant",
        ),
        "ONNX Runtime QuantizeLinear int8": (quantize(x, codes, 0.1), "dynamic_quantize"),
    }


def round_trips(x: np.ndarray) -> dict[str, tuple[Call, str]]:
    import ml_dtypes

    return {
        "ml_dtypes float8_e4m3fn round trip": (
            lambda: x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
            "float_quant",
        )
    }


def contestants(x: np.ndarray, out: np.ndarray) -> dict[str, tuple[Call, str]]:
    found: dict[str, tuple[Call, str]] = {}
    for peer in (
        lambda: qonnx_functions(x),
        lambda: torch_fake_quantize(x),
        lambda: onnxruntime_pairs(x, out),
        lambda: round_trips(x),
    ):
        try:
            found |= peer()
        except ImportError as error:
            print(f"left out: {error.name} is not installed")
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--elements", type=int, default=16 << 20)
    options = parser.parse_args()
    anybit.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal(options.elements, dtype=np.float32)
    out, codes = np.empty_like(x), np.empty(x.shape, np.int8)
    ours: dict[str, Call] = {
        "int_quant": lambda: anybit.int_quant(x, 0.1, 0, 4, out=out),
        "int_quant 8 bit": lambda: anybit.int_quant(x, 0.1, 0, 8, out=out),
        "float_quant": lambda: anybit.float_quant(x, 0.1, *E4M3, out=out),
        "dynamic_quantize": lambda: anybit.dynamic_quantize(x, [0.1], out=codes),
    }
    rows = []
    for peer, (call, operator) in contestants(x, np.empty_like(x)).items():
        times = best_times({"peer": call, "ours": ours[operator]}, options.rounds)
        moved = x.nbytes + (codes.nbytes if operator == "dynamic_quantize" else x.nbytes)
        rows.append(
            (
                peer,
                f"{moved / times['peer'] / 1e9:.2f} GB/s",
                operator,
                f"{moved / times['ours'] / 1e9:.1f} GB/s",
                f"{times['peer'] / times['ours']:.1f} x",
            )
        )
    packages = versions("numpy", "qonnx", "onnxruntime", "torch", "ml_dtypes")
    print(f"{machine()}; {anybit._native.isa()}; {packages}")
    title = f"{options.elements >> 10} Ki float32, one thread, bytes read and written over time"
    show(title, ("peer", "peer's rate", "ours", "our rate", "speedup"), rows, options.markdown)


if __name__ == "__main__":
    main()
