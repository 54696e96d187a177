# SPDX-License-Identifier: Apache-2.0
"""Block-wise weights: specs, written models, execution and errors."""

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from block_models import WORDS, layers_of_all_kinds, output_weights
from clean_checks import assert_array_bits
from float_models import NETWORKS, data_for
from onnx.reference import ReferenceEvaluator
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError, OptionError
from anybit.onnx import reference_ops
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.blocks import BlockLayout, choose_block_layout
from anybit.ptq.graph.targets import WeightInput, find_targets
from anybit.quant_types.spec import parse_quant_spec


@pytest.mark.parametrize(
    ("spec", "opset"), [*((spec, 17) for spec in WORDS), ("mxfp4", 7), ("int4 per-block 8", 7)]
)
def test_quantize_writes_the_rounded_block_weights(spec: str, opset: int) -> None:
    """Compare bits in ONNX Runtime and in the reference evaluator."""
    proto = layers_of_all_kinds(opset)
    expected = {
        layer.name: round_to_nearest(
            array, weight, parse_quant_spec(spec, "weights"), DEFAULT.weights
        ).values
        for layer in find_targets(ir.from_proto(onnx.shape_inference.infer_shapes(proto))).layers
        for weight, array in layer.constants
    }
    result = anybit.quantize(proto, weights=spec, activations="float")
    assert len(expected) == 6
    assert not result.skipped
    weights = output_weights(result.model)
    evaluator = ReferenceEvaluator(ir.to_proto(weights), new_ops=reference_ops())
    by_numpy = dict(zip(expected, evaluator.run(None, {}), strict=True))
    by_runtime = anybit.load(weights).run({})
    for name, array in expected.items():
        assert_array_bits(by_numpy[name], array)
        assert_array_bits(by_runtime[name], array)


@pytest.mark.parametrize(
    ("name", "spec", "least_sqnr"),
    [
        ("convolutions", "mxint8", 35),
        ("recurrent", "mxfp6", 25),
        ("attention", "nvfp4", 16),
        ("recurrent", "int4 per-block 16", 16),
    ],
)
def test_quantize_with_block_weights_is_accurate(name: str, spec: str, least_sqnr: float) -> None:
    result = anybit.quantize(NETWORKS[name](), data_for(name), weights=spec, activations="float")
    assert result.verdict is not None
    assert result.verdict.sqnr > least_sqnr
    assert {layer.weights for layer in result.layers} <= {spec, ""}


def test_round_to_nearest_with_searched_scales_lowers_the_error() -> None:
    array = random(64, 256, seed=3)
    weight = WeightInput(1, (0,), 1)
    for plain, chosen, share in (
        ("mxfp4 floor", "mxfp4", 0.95),
        ("nvfp4 absmax", "nvfp4 mse", 0.85),
    ):
        errors = [
            np.square(
                round_to_nearest(
                    array, weight, parse_quant_spec(spec, "weights"), DEFAULT.weights
                ).values
                - array
            ).sum()
            for spec in (plain, chosen)
        ]
        assert errors[1] < share * errors[0]


def test_quantize_combines_block_weights_with_uint8_activations() -> None:
    result = anybit.quantize(NETWORKS["attention"](), data_for("attention"), weights="mxfp8")
    assert result.verdict is not None
    assert result.verdict.sqnr > 20
    assert {layer.activations for layer in result.layers} == {"uint8"}


def test_choose_block_layout_follows_the_reduction_axis() -> None:
    # Blocks lie along input channels, or along the whole reduction if these are few.
    assert choose_block_layout((8, 64, 3, 3), WeightInput(1, (0,), 1), 32) == BlockLayout(
        (8, 64, 3, 3), 1, 1, 32
    )
    assert choose_block_layout((8, 16, 3, 3), WeightInput(1, (0,), 1), 32) == BlockLayout(
        (8, 16, 3, 3), 1, 3, 32
    )
    assert choose_block_layout((8, 1, 3, 3), WeightInput(1, (0,), 0), 32) == BlockLayout(
        (8, 1, 3, 3), 1, 3, 32
    )
    assert choose_block_layout((64, 8, 3, 3), WeightInput(1, (1,), 0), 32) == BlockLayout(
        (64, 8, 3, 3), 0, 0, 32
    )
    assert choose_block_layout((16, 8, 3, 3), WeightInput(1, (1,), 0), 32) == BlockLayout(
        (16, 8, 3, 3), 0, 0, 32
    )
    assert choose_block_layout((9, 64, 8), WeightInput(1, (0, 2), None), 32) == BlockLayout(
        (9, 64, 8), 1, 1, 32
    )
    assert choose_block_layout((64,), WeightInput(1, (), None), 32) == BlockLayout((64,), 0, 0, 32)


@pytest.mark.parametrize(
    ("blocks", "cut"),
    [
        (BlockLayout((2, 70, 3), 1, 1, 32), (2, 3, 32, 3)),
        (BlockLayout((2, 5, 7), 1, 2, 32), (2, 2, 32)),
        (BlockLayout((64, 3), 0, 0, 32), (2, 32, 3)),
        (BlockLayout((5, 3), 0, 0, 32), (1, 5, 3)),
    ],
)
def test_block_layout_splits_and_joins(blocks: BlockLayout, cut: tuple[int, ...]) -> None:
    array = random(*blocks.shape)
    parts = blocks.split(array)
    assert parts.shape == blocks.split_shape == cut
    scales = random(*(1 if axis == blocks.axis else size for axis, size in enumerate(cut)))
    spread = blocks.expand(scales)
    assert spread.shape == blocks.shape
    np.testing.assert_array_equal(blocks.gather(spread), scales)
    # Split elements still match their scales.
    np.testing.assert_array_equal(blocks.split(array * spread), parts * scales)


def test_result_bytes_include_block_scales() -> None:
    proto = layers_of_all_kinds()
    del proto.graph.node[:5]
    proto.graph.node[0].input[0] = "x"
    proto.graph.input[0].type.tensor_type.shape.CopyFrom(
        onnx.helper.make_tensor_type_proto(1, ["rows", 96]).tensor_type.shape
    )
    sizes = {
        "mxfp4": (4, 32, 8),
        "nvfp4": (4, 16, 8),
        "int4 per-block 32": (4, 32, 32),
        "uint4 per-block 16": (4, 16, 36),
    }
    for spec, (bits, block, scale) in sizes.items():
        result = anybit.quantize(proto, weights=spec, activations="float")
        saved = sum(
            summed * channels * 4
            - math.ceil((summed * channels * bits + -(-summed // block) * channels * scale) / 8)
            for summed, channels in ((96, 7), (7, 33))
        )
        assert result.bytes_before - result.bytes_after == saved


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("int4 per-block", 'per-block needs the number of elements, such as "per-block 32"'),
        ("int4 per-block 0", "per-block needs the number"),
        ("int4 per-block 32 per-channel", "sets granularity twice"),
        ("int4 floor", "floor is for MX and NVFP4, not for int4"),
        ("mxfp4 per-channel", "mxfp4 defines its scales and codes itself; leave out 'per-channel'"),
        ("mxfp4 power-of-two", "leave out 'power-of-two'"),
        ("mxfp4 asymmetric", "leave out 'asymmetric'"),
        ("nvfp4 floor", "rule of nvfp4 cannot be floor; use mse or absmax"),
        ("mxfp4 absmax", "mxfp4 cannot be absmax; use mse or floor or ceil or even"),
        ("mxfp5", 'unknown format "mxfp5"; did you mean "mxfp'),
        ("MXFP4", 'unknown format "MXFP4"; did you mean "mxfp4"'),
        ("mxfp4 narrow", "narrow is for integers"),
    ],
)
def test_quantize_rejects_invalid_block_specs(spec: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(layers_of_all_kinds(), weights=spec, activations="float")


def test_quantize_rejects_block_weights_that_overflow() -> None:
    top = np.finfo(np.float32).max
    proto = model([node("MatMul", "x w", domain="", name="head")], {"w": np.full((32, 4), top)})
    with pytest.raises(ModelError, match="'w' has numbers so near to the end of float32"):
        anybit.quantize(proto, weights="mxfp4 ceil", activations="float")
    assert anybit.quantize(proto, weights="mxfp4", activations="float").layers
