# SPDX-License-Identifier: Apache-2.0
"""One description of quantizers: nodes of ours, and pairs of ONNX's own two."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import DOMAIN, array, model, node

import anybit
from anybit.errors import ModelError
from anybit.onnx import read
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnx.quantizers.quantizer import (
    OwnQuantizer,
    Quantizer,
    find_quantizer,
    find_quantizers,
)
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.domain import Role
from anybit.ops.grids import Coding, FloatGrid, IntegerGrid


def prepared(proto: onnx.ModelProto) -> ir.Model:
    actual = read(proto)
    Normalize()(actual)
    FoldConstants(operators=False)(actual)
    return actual


def quantizers(proto: onnx.ModelProto) -> list[Quantizer]:
    return find_quantizers(prepared(proto))


def pair(dtype: Any = np.int8, zero: int = 0, *, clip: tuple[int, int] | None = None) -> Any:
    codes = "q" if clip is None else "c"
    nodes = [node("QuantizeLinear", "x s z", "q", name="quantize", domain="")]
    constants = {"s": array(0.5), "z": np.array(zero, dtype)}
    if clip is not None:
        nodes.append(node("Clip", "q low high", "c", name="clip", domain=""))
        constants |= {"low": np.array(clip[0], dtype), "high": np.array(clip[1], dtype)}
    nodes.append(node("DequantizeLinear", f"{codes} s z", "y", name="dequantize", domain=""))
    return model(nodes, constants, opsets={"": 21})


@pytest.mark.parametrize(
    ("proto", "codes", "coding"),
    [
        (pair(), range(-128, 128), Coding.NEAREST),
        (pair(np.uint8), range(256), Coding.NEAREST),
        (pair(zero=3), range(-128, 128), Coding.OTHER),
        (pair(clip=(-7, 7)), range(-7, 8), Coding.NEAREST),
        (pair(ml_dtypes.int4), range(-8, 8), Coding.NEAREST),
    ],
    ids=["int8", "uint8", "zero-point", "clip", "int4"],
)
def test_quantizers_pair_is_one_quantizer(
    proto: onnx.ModelProto, codes: range, coding: Coding
) -> None:
    (actual,) = quantizers(proto)
    assert (actual.kind, actual.role, actual.node.name) == ("QDQ", "input", "dequantize")
    assert actual.quantize is not None
    assert actual.quantize.name == "quantize"
    assert isinstance(actual.grid, IntegerGrid)
    assert (actual.grid.codes, actual.grid.coding) == (codes, coding)
    assert actual.grid.scale.tolist() == 0.5
    assert actual.static


def test_quantizers_pair_of_floats() -> None:
    (actual,) = quantizers(pair(ml_dtypes.float8_e4m3fn))
    assert isinstance(actual.grid, FloatGrid)
    assert (str(actual.grid.format), actual.grid.bits) == ("float8_e4m3fn", 8)


def test_quantizers_node_of_ours_is_a_quantizer() -> None:
    proto = model([node("Quant", "x s z b", name="q")], {"s": 0.5, "z": 1, "b": 3})
    (actual,) = quantizers(proto)
    assert isinstance(actual, OwnQuantizer)
    assert (actual.kind, actual.role, actual.spelled) == ("IntQuant", "input", "IntQuant")
    assert actual.attributes == {"signed": True, "narrow": False, "rounding_mode": "ROUND"}
    assert isinstance(actual.grid, IntegerGrid)
    assert actual.grid.codes == range(-4, 4)
    width = actual.get_parameter(Role.BITWIDTH)
    assert width is not None
    assert width.tolist() == 3
    assert actual.get_parameter(Role.LIMIT) is None


@pytest.mark.parametrize(
    ("quantize", "constants", "codes"),
    [
        ("BipolarQuant", {"s": 0.5}, range(-1, 2, 2)),
        ("Quant", {"s": 0.5, "z": 0, "b": 3}, range(-4, 4)),
    ],
)
def test_quantizers_stored_codes_of_fewer_values_than_their_type(
    quantize: str, constants: dict[str, Any], codes: range
) -> None:
    nodes = [
        node(quantize, f"w {' '.join(constants)}", "q"),
        node("MatMul", "x q", domain=""),
    ]
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    proto = model(nodes, {"w": weight, **constants})
    (actual,) = quantizers(ir.to_proto(anybit.convert(proto, to="qdq").model))
    assert (actual.kind, actual.constant, actual.role) == ("QDQ", True, "weight")
    assert isinstance(actual.grid, IntegerGrid)
    assert actual.grid.codes == codes


def test_quantizers_roles_follow_from_readers() -> None:
    weight = np.ones((4, 4), np.float32)
    proto = model(
        [
            node("Quant", "w s z b", "wq", name="weight"),
            node("DequantizeLinear", "c s", "bq", name="bias", domain=""),
            node("Quant", "x s z b", "xq", name="input"),
            node("Gemm", "xq wq bq", "g", name="gemm", domain=""),
            node("Quant", "g s z b", "y", name="activation"),
        ],
        {"w": weight, "c": np.ones(4, np.int32), "s": array(0.5), "z": 0, "b": 4},
    )
    assert {quantizer.node.name: quantizer.role for quantizer in quantizers(proto)} == {
        name: name for name in ("weight", "bias", "input", "activation")
    }


def test_quantizers_codes_that_each_reader_dequantizes_are_one_quantizer() -> None:
    proto = pair()
    proto.graph.node.append(node("DequantizeLinear", "q s z", "v", name="again", domain=""))
    proto.graph.node.append(node("Add", "y v", "sum", domain=""))
    proto.graph.output[0].name = "sum"
    assert [quantizer.node.name for quantizer in quantizers(proto)] == ["dequantize"]


def test_quantizers_codes_that_something_else_reads() -> None:
    proto = pair()
    del proto.graph.node[1]
    proto.graph.output[0].name = "q"
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    (actual,) = quantizers(proto)
    assert (actual.kind, actual.node.name) == ("QuantizeLinear", "quantize")


def test_quantizers_parameters_of_a_run() -> None:
    proto = model(
        [node("Quant", "x s z b", name="q")], {"z": 0, "b": 3}, inputs={"x": [2], "s": []}
    )
    (actual,) = quantizers(proto)
    assert (actual.computed, actual.grid) == (("scale",), None)
    assert actual.find_spacing((2,), made=True) is None
    arrays = {"s": array(-0.25), "z": array(0), "b": array(3)}
    arguments = find_quantizer(actual.node, Traces(), arrays)
    assert arguments is not None
    assert arguments.static
    spacing = arguments.find_spacing((2,), made=True)
    assert spacing is not None
    assert spacing.count_steps(array([1, -0.5])).tolist() == [4, -2]


def test_quantizers_spacing_before_and_after_a_trunc() -> None:
    constants = {"s": 0.5, "z": 0, "i": 8, "o": 2, "b": 4}
    proto = model([node("Trunc", "x s z i o b")], constants, opsets={DOMAIN: 2})
    (actual,) = quantizers(proto)
    steps = []
    for made in (False, True):
        spacing = actual.find_spacing((1, 4), made=made)
        assert spacing is not None
        steps.append(float(spacing.scale))
    assert steps == [0.5, 2]


def test_quantizers_parameter_that_the_operator_refuses_has_no_grid() -> None:
    (actual,) = quantizers(model([node("Quant", "x s z b")], {"s": 1, "z": 0, "b": 2.5}))
    assert actual.grid is None
    with pytest.raises(ModelError, match=r"bitwidth must be an integer >= 1, got 2\.5"):
        actual.check_grid()


def test_quantizers_blocks_and_computed_scales_have_no_grid() -> None:
    proto = pair()
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("block_size", 2))
    assert [quantizer.grid for quantizer in quantizers(proto)] == [None]
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("axis", "last"))
    with pytest.raises(ModelError, match="axis must be an integer"):
        quantizers(proto)
