# SPDX-License-Identifier: Apache-2.0
"""From PyTorch to a file and back: every operator, through both exporters."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import anybit
from anybit.ops import OPERATORS

torch = pytest.importorskip("torch", reason="PyTorch makes these models")

from torch_modules import Call, bits, check_file, numbers  # noqa: E402  needs torch

import anybit.torch as ours  # noqa: E402
from anybit.torch import export, export_options  # noqa: E402

BY_NAME = {operator.name: operator for operator in OPERATORS}
CHANNELS = torch.tensor([0.5, 0.25, 1.0])[:, None]
FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


CALLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "int_quant": ("int_quant", lambda x: ours.int_quant(x, 0.25, 0, 4)),
    "int_quant per channel": (
        "int_quant",
        lambda x: ours.int_quant(
            x,
            CHANNELS,
            torch.tensor([[1.0], [0.0], [-2.0]]),
            torch.tensor([[2], [3], [4]]),
            signed=False,
            narrow=True,
            rounding_mode="half_up",
        ),
    ),
    "float_quant": ("float_quant", lambda x: ours.float_quant(x, 0.5, 3, 2, 3)),
    "float_quant per channel": (
        "float_quant",
        lambda x: ours.float_quant(
            x,
            CHANNELS,
            torch.tensor([[2], [3], [4]]),
            torch.tensor([[1], [2], [3]]),
            torch.tensor([[1], [3], [7]]),
            torch.tensor([[6.0], [3.0], [448.0]]),
            signed=False,
            rounding_mode="UP",
            has_infinity=True,
            has_nan=True,
            has_subnormal=False,
            saturation=False,
        ),
    ),
    "trunc": ("trunc", lambda x: ours.trunc(x, 0.0625, 0, 8, 0.25, 6)),
    "trunc per channel": (
        "trunc",
        lambda x: ours.trunc(
            x,
            CHANNELS / 16,
            0.0,
            9,
            CHANNELS / 4,
            torch.tensor([[5], [6], [7]]),
            signed=False,
            narrow=True,
            rounding_mode="CEIL",
        ),
    ),
    "trunc_v1": ("trunc_v1", lambda x: ours.trunc_v1(x, 0.0625, 1, 9, 6)),
    "trunc_v1 per channel": (
        "trunc_v1",
        lambda x: ours.trunc_v1(x, CHANNELS / 16, 0, 9, 6, rounding_mode="DOWN"),
    ),
    "bipolar_quant": ("bipolar_quant", lambda x: ours.bipolar_quant(x, 0.75)),
    "bipolar_quant per channel": ("bipolar_quant", lambda x: ours.bipolar_quant(x, CHANNELS)),
    "block_quant": ("block_quant", lambda x: ours.block_quant(x, format="mxfp4", block_size=4)),
}


def test_export_cases_cover_every_operator() -> None:
    dynamic = {"dynamic_quantize", "dynamic_dequantize"}
    assert {name for name, _ in CALLS.values()} | dynamic == set(BY_NAME)


TYPED_CALLS = [
    (call, dtype)
    for call in CALLS
    for dtype in (FLOAT_DTYPES if "channel" in call else (torch.float32,))
]


@pytest.mark.parametrize(("call", "dtype"), TYPED_CALLS, ids=str)
def test_export_of_an_operator_is_exact(call: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Export one node, in the operator's domain and version, with its attributes, exactly."""
    name, function = CALLS[call]
    operator, module = BY_NAME[name], Call(function)
    x, path = numbers(2, 3, 40, dtype=dtype), tmp_path / "model.onnx"
    actual = export(module, x, path)
    assert actual.equal, str(actual)
    model = check_file(path)
    (node,) = model.graph.node
    assert (node.domain, node.op_type) == (operator.onnx_domain, operator.onnx_name)
    assert {entry.name for entry in node.attribute} == {
        attribute.onnx_name for attribute in operator.attributes
    }
    imports = {item.domain: item.version for item in model.opset_import}
    assert imports == {"": 18, operator.onnx_domain: operator.version}
    if dtype is torch.bfloat16:
        return  # NumPy has no such type
    # Other numbers, and another batch.
    x = numbers(5, 3, 40, dtype=dtype) * 1.5
    (result,) = anybit.load(path).run(x.numpy()).values()
    np.testing.assert_array_equal(bits(result), bits(module(x)))


@pytest.mark.parametrize("dtype", ["s8", "u8"])
def test_export_of_dynamic_quantize_is_exact(dtype: str, tmp_path: Path) -> None:
    """Scales and zero-points that are inputs; types that must be kept; an optional input."""

    def with_zero_points(src: Any, scales: Any, zps: Any) -> Any:
        return ours.dynamic_quantize(
            src, scales, zps, dtype=dtype, qtype="per_channel", axis=-2, arithmetic="reciprocal"
        )

    x, path = numbers(2, 3, 4), tmp_path / "model.onnx"
    scales, zps = torch.tensor([0.5, 0.3, 2.0]), torch.tensor([1, 2, 3], dtype=torch.int32)
    result = export(Call(with_zero_points), (x, scales, zps), path)
    assert result.equal
    (node,) = check_file(path).graph.node
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert attributes == {
        "dst": dtype.encode(),
        "qtype": b"per_channel",
        "axis": -2,
        "arithmetic": b"reciprocal",
    }
    without = export(
        Call(lambda src: ours.dynamic_quantize(src, torch.tensor([0.5]), dtype=dtype)), x
    )
    assert without.equal
    (node,) = without.model.graph
    assert len(node.inputs) == 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_export_of_dynamic_dequantize_is_exact(dtype: torch.dtype, tmp_path: Path) -> None:
    """Codes, scales and zero-points that are inputs; behind what makes codes, and alone."""

    def with_zero_points(src: Any, scales: Any, zps: Any) -> Any:
        return ours.dynamic_dequantize(src, scales, zps, qtype="per_channel", axis=-2)

    path = tmp_path / "model.onnx"
    codes = torch.arange(24).to(dtype).reshape(2, 3, 4)
    scales, zps = torch.tensor([0.5, 0.3, 2.0]), torch.tensor([1, 2, 2**24 + 5], dtype=torch.int32)
    result = export(Call(with_zero_points), (codes, scales, zps), path)
    assert result.equal
    (node,) = check_file(path).graph.node
    attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert attributes == {"qtype": b"per_channel", "axis": -2}

    def pair(src: Any) -> Any:
        made = ours.dynamic_quantize(src, torch.tensor([0.5]))
        return ours.dynamic_dequantize(made, torch.tensor([0.5]))

    both = export(Call(pair), numbers(2, 3, 4))
    assert both.equal
    assert [node.op_type for node in both.model.graph] == ["DynamicQuantize", "DynamicDequantize"]


def test_export_writes_parameters_like_qonnx(tmp_path: Path) -> None:
    """float32 for whole numbers, whatever they were; the names say what they are."""
    for dtype, expected in ((torch.float32, "FLOAT"), (torch.float64, "DOUBLE")):
        model = export(Call(CALLS["int_quant"][1]), numbers(2, 3, dtype=dtype)).model
        result = {name: value.dtype.name for name, value in model.graph.initializers.items()}
        assert result == {"scale": expected, "zeropt": expected, "bitwidth": "FLOAT"}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("call", [call for call in CALLS if "channel" in call])
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_export_options_with_torch_onnx_export(call: str, optimize: bool, tmp_path: Path) -> None:
    name, function = CALLS[call]
    operator, module, path = BY_NAME[name], Call(function).eval(), tmp_path / "model.onnx"
    x = numbers(2, 3, 40)
    torch.onnx.export(
        module, (x,), path, dynamo=True, verbose=False, optimize=optimize, **export_options()
    )
    model = onnx.load(path)
    nodes = [node for node in model.graph.node if node.domain]
    assert [node.op_type for node in nodes] == [operator.onnx_name]
    if optimize:
        assert len(model.graph.node) == 1
        assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    versions = {item.domain: item.version for item in model.opset_import}
    assert versions[operator.onnx_domain] == operator.version
    (result,) = anybit.load(path).run(x.numpy()).values()
    np.testing.assert_array_equal(bits(result), bits(module(x)))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_export_options_with_two_versions_are_refused_by_load(tmp_path: Path) -> None:
    module = torch.nn.Sequential(Call(CALLS["trunc_v1"][1]), Call(CALLS["trunc"][1])).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        module, (numbers(2, 3, 40),), path, dynamo=True, verbose=False, **export_options()
    )
    with pytest.raises(anybit.ModelError, match="5 inputs, which is version 1"):
        anybit.load(path)


def test_export_registers_nothing(tmp_path: Path) -> None:
    """Importing loads no onnx; schemas of Python can hang the interpreter at its end."""
    code = (
        "import sys, torch, anybit.torch\n"
        "assert 'onnx' not in sys.modules and 'onnxruntime' not in sys.modules\n"
        "import onnx\n"
        "class Module(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return anybit.torch.bipolar_quant(x, 1.0)\n"
        "options = anybit.torch.export_options()\n"
        "options |= {'dynamo': True, 'verbose': False}\n"
        "torch.onnx.export(Module().eval(), (torch.ones(2),), **options)\n"
        "assert not onnx.defs.has('BipolarQuant', 'qonnx.custom_op.general')\n"
        f"anybit.torch.export(Module(), torch.ones(2), {str(tmp_path / 'model.onnx')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.onnx").exists()
