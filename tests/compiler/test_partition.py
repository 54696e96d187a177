# SPDX-License-Identifier: Apache-2.0
"""Structures that become integer regions equal the float graph."""

import re
from collections import Counter

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler.pipeline import find_regions
from anybit.compiler.prepare.pool_codes import pool_codes
from anybit.compiler.program import program as p
from anybit.inspection import report_compilation, text
from anybit.onnx.preparation import prepare_for_analysis
from anybit.quant_types.layer_info import Guarantee

QUANT = "Quant <signed: int = {}, narrow: int = 0>"


def network(body, x="n, 4, 6, 6", y="n, 3, 6, 6", bits=4):
    """Return a model with nodes, where Q quantizes to signed and U to unsigned codes.

    There are weights of 3 x 4 x 3 x 3, 4 x 3 and 3 x 4 in quarters, and numbers per channel.
    """
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-7, 8, (3, 4, 3, 3)) / 4,
        "w2": random.integers(-7, 8, (3, 3, 3, 3)) / 4,
        "dw": random.integers(-7, 8, (4, 1, 3, 3)) / 4,
        "m": random.integers(-7, 8, (4, 3)) / 4,
        "mm": random.integers(-7, 8, (108, 5)) / 4,
        "gain": [0.5, -0.25, 0.0],
        "offset": [0.25, 1.0, -0.5],
        "mean": [0.0, 0.5, 0.25],
        "variance": [1.0, 0.25, 4.0],
        "b": [0.25, -0.5, 1.0],
        "step": 0.5,
        "none": 0.0,
        "bits": bits,
    }
    text = body.replace("Q(", f"{QUANT.format(1)}(").replace("U(", f"{QUANT.format(0)}(")
    text = re.sub(r"(Quant <[^>]*>)\((\w+)\)", r"\1 (\2, step, none, bits)", text)
    constants = {name: np.float32(item) for name, item in constants.items()}
    return parse(f"g (float[{x}] x) => (float[{y}] y) {{ {text} }}", constants)


def give(model, **constants):
    """Return the model with NumPy arrays or numbers as constants by name."""
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def check(model, layers, regions=1, of=None, shape=(5, 4, 6, 6)):
    """Check the number of compiled layers, and all outputs against the float graph."""
    compiled = anybit.compile(model)
    result = [layer for layer in compiled.report.products if layer.guarantee is not None]
    reasons = [layer.reason for layer in compiled.report.layers]
    assert (len(result), len(compiled.report.programs)) == (layers, regions), reasons
    assert len(compiled.report.products) == (layers if of is None else of)
    random = np.random.default_rng(1)
    ties = random.integers(-20, 20, shape) / 4
    x = np.where(random.random(shape) < 0.5, random.standard_normal(shape) * 2, ties)
    x = x.astype(np.float32)
    expected = anybit.load(model).run(x)
    got = compiled.run(x)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
    return compiled


CHAINS = {
    "normalized": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        n = BatchNormalization (c, gain, offset, mean, variance)
        y = Q(n)""",
    "rectified, pooled, quantized": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        r = Relu (c)
        p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r)
        y = U(p)""",
    "two convolutions": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w, b)
        q = U(c)
        d = Conv <pads = [1, 1, 1, 1]> (q, w2)
        y = Relu (d)""",
    "residual": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = U(c)
        d = Conv <pads = [1, 1, 1, 1]> (q, w2)
        e = Q(d)
        s = Add (q, e)
        y = Q(s)""",
    "bipolar with zeros at the border": """
        a = BipolarQuant (x, step)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        y = Q(c)""",
    "a function that rises and falls": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        h = HardSwish (c)
        y = Q(h)""",
    "codes, then numbers per channel": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        y = BatchNormalization (q, gain, offset, mean, variance)""",
    "codes for two": """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        f = Abs (q)
        y = Mul (f, q)""",
}


@pytest.mark.parametrize("name", CHAINS)
def test_partition_joins_chains(name):
    layers = CHAINS[name].count("Conv ")
    check(network(CHAINS[name]), layers)


def test_partition_supports_means():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = U(c)
        g = GlobalAveragePool (q)
        y = Q(g)"""
    compiled = check(network(body, y="n, 3, 1, 1"), 1)
    assert [layer.layer.operator for layer in compiled.report.layers] == [
        "Conv",
        "GlobalAveragePool",
    ]
    # The table counts what the coverage counts.
    assert compiled.report.coverage.startswith("1 of 1 layer,")
    assert text.make_layer_rows(report_compilation(compiled.report, "m"))[-1]["layer"] == "1 layer"


@pytest.mark.parametrize("border", ["pads = [1, 0, 1, 2]", 'auto_pad = "SAME_LOWER"'])
@pytest.mark.parametrize("quantizer", ["Q(x)", "BipolarQuant (x, step)"])
def test_partition_supports_padded_means(border, quantizer):
    body = f"""
        a = {quantizer}
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        g = AveragePool <kernel_shape = [3, 3], {border}, count_include_pad = 1> (q)
        z = Q(g)
        y = Conv <pads = [1, 1, 1, 1]> (z, w2)"""
    compiled = check(network(body, y="n, 3, 6, 6"), 2)
    assert [layer.layer.operator for layer in compiled.report.layers] == [
        "Conv",
        "AveragePool",
        "Conv",
    ]
    # Without the zeros means at the borders are of fewer elements, and each is another function.
    other = check(network(body.replace("include_pad = 1", "include_pad = 0"), y="n, 3, 6, 6"), 2, 2)
    assert [layer.layer.operator for layer in other.report.layers] == ["Conv", "Conv"]


def test_partition_supports_matmul():
    body = """
        a = Q(x)
        c = MatMul (a, m)
        d = Add (c, b)
        y = Q(d)"""
    check(network(body, "n, 5, 4", "n, 5, 3"), 1, shape=(3, 5, 4))
    check(network(body, "n, 4", "n, 3"), 1, shape=(7, 4))


def test_partition_supports_conv_1d():
    body = """
        a = Q(x)
        c = Conv <group = 4, pads = [1, 1]> (a, dw1)
        y = Q(c)"""
    model = network(body, "n, 4, 9", "n, 4, 9")
    weights = (np.random.default_rng(2).integers(-7, 8, (4, 1, 3)) / 4).astype(np.float32)
    check(give(model, dw1=weights), 1, shape=(4, 4, 9))


def test_partition_supports_flatten():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        f = Flatten (c)
        q = Q(f)
        y = MatMul (q, mm)"""
    check(network(body, y="n, 5"), 2)


def test_partition_supports_slice_pad_resize():
    body = """
        a = Q(x)
        s = Slice (a, from, to, axes)
        p = Pad (s, pads)
        c = Conv (p, w)
        q = Q(c)
        z = Resize <mode = "nearest", nearest_mode = "floor"> (q, , scales)
        y = Conv <strides = [2, 2]> (z, w2)"""
    model = network(body, y="n, 3, 4, 4")
    sizes = {
        "from": np.array([0, 1], np.int64),
        "to": np.array([6, 6], np.int64),
        "axes": np.array([2, 3], np.int64),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 2], np.int64),
    }
    give(model, scales=np.float32([1, 1, 2, 2]), **sizes)
    check(model, 2)


def test_partition_supports_concat_and_split():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        t = Concat <axis = 1> (q, a)
        one, two = Split <axis = 1> (t, sizes)
        d = Conv <pads = [1, 1, 1, 1]> (one, w2)
        e = Conv <pads = [1, 1, 1, 1]> (two, w)
        y = Add (d, e)"""
    model = network(body)
    check(give(model, sizes=np.array([3, 4], np.int64)), 3)


def test_merge_quantizers_of_one_tensor():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        r = Relu (c)
        p = Q(r)
        q = Q(r)
        d = Conv (p, w2)
        e = Conv (q, w2)
        s = Q(d)
        t = Q(e)
        y = Add (s, t)"""
    compiled = check(network(body, y="n, 3, 3, 3"), 3)
    assert {"p", "q"} & compiled.codes == {"p"}


@pytest.mark.parametrize(
    "after",
    [
        "q = Q(t)",
        "r = Relu (t)\n q = U(r)",
        "i = QuantizeLinear (t, step, zero)\n q = DequantizeLinear (i, step, zero)",
        "q = BipolarQuant (t, step)",
        "r = Mul (t, gains)\n q = Q(r)",
    ],
)
def test_hoist_quantizers_before_concat(after):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        e = Quant <signed: int = 1> (c, offset0, none, bits)
        f = Conv <pads = [1, 1, 1, 1]> (a, w, b)
        t = Concat <axis = 1> (e, a, f)
        {after}
        y = Conv (q, w10)"""
    model = network(body, y="n, 2, 6, 6")
    weights = np.random.default_rng(0).integers(-7, 8, (2, 10, 1, 1)).astype(np.float32)
    gains = (np.arange(10, dtype=np.float32) - 2).reshape(10, 1, 1)
    check(give(model, zero=np.uint8(3), offset0=np.float32(0.75), w10=weights, gains=gains), 3)


@pytest.mark.parametrize(("mode", "regions"), [('mode = "nearest"', 1), ('mode = "linear"', 2)])
def test_hoist_quantizers_before_resize(mode, regions):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        h = HardSwish (c)
        t = Resize <{mode}> (h, , scales)
        l = LeakyRelu (t)
        q = Q(l)
        y = Conv (q, w2)"""
    model = network(body, y="n, 3, 10, 10")
    compiled = check(give(model, scales=np.float32([1, 1, 2, 2])), 2, regions)
    assert compiled.codes == {"a", "q"}


@pytest.mark.parametrize(("scales", "regions"), [([1, 1, 2, 2], 1), ([1, 1.2, 2, 2], 2)])
def test_hoist_quantizers_before_concat_and_resize(scales, regions):
    """Move a constant per channel, too, unless the scale of that axis is not 1."""
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        h = HardSwish (c)
        f = Conv <pads = [1, 1, 1, 1]> (a, w, b)
        t = Resize <mode = "nearest"> (h, , scales)
        u = Resize <mode = "nearest"> (f, , scales2)
        v = Concat <axis = 1> (t, u)
        r = Mul (v, gains)
        q = Q(r)
        y = Conv (q, w6)"""
    model = network(body, y="n, 2, 12, 12")
    weights = np.random.default_rng(0).integers(-7, 8, (2, 6, 1, 1)).astype(np.float32)
    gains = (np.arange(6, dtype=np.float32) - 2.5).reshape(6, 1, 1)
    constants = {"scales": np.float32(scales), "scales2": np.float32([1, 1, 2, 2])}
    check(give(model, w6=weights, gains=gains, **constants), 3, regions)


@pytest.mark.parametrize(
    ("axes", "scales", "roi"),
    [
        ([2, 3, 1, 0], [1, 1, 2, 1], []),  # not in the order of the axes
        ([-1, -2, -3, -4], [1, 1, 2, 1], []),
        ([1, 2], [2, 1], [1, 1, 1, 1]),  # a region as long as the scales of all axes
    ],
)
def test_quantizers_stay_after_resize_of_channels(axes, scales, roi):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        h = HardSwish (c)
        t = Resize <mode = "nearest", axes = {axes}> (h, roi, scales)
        r = Add (t, offsets)
        q = Q(r)
        y = Conv (q, w6)"""
    model = network(body, y="n, 2, 6, 6")
    model.opset_import[0].version = 18
    constants = {"scales": np.float32(scales), "roi": np.float32(roi)}
    constants["offsets"] = np.arange(6, dtype=np.float32).reshape(6, 1, 1) / 4
    constants["w6"] = np.random.default_rng(0).integers(-7, 8, (2, 6, 1, 1)).astype(np.float32)
    check(give(model, **constants), 2, 2)


@pytest.mark.parametrize(("number", "regions"), [(0.0, 1), (3.0, 2)])
def test_resize_that_extrapolates_another_number_than_zero_stays(number, regions):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        t = Resize <mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize",
            extrapolation_value = {number}> (q, roi, , sizes)
        u = Q(t)
        y = Conv (u, w2)"""
    model = network(body, x="1, 4, 6, 6", y="1, 3, 4, 4")
    roi = np.float32([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5])
    constants = {"roi": roi, "sizes": np.array([1, 3, 6, 6])}
    check(give(model, **constants), 2, regions, shape=(1, 4, 6, 6))


@pytest.mark.parametrize(
    "moves",
    [
        "Reshape -1,3,10; Transpose 0,2,1; Reshape -1,5,6; Reshape -1,10,3",
        "Reshape -1,3,10; Transpose 0,2,1; Reshape -1,5,2,3; Transpose 0,2,1,3",
        "Transpose 0,2,3,1; Reshape -1,15,2; Transpose 0,2,1; Reshape -1,10,3",
        "Reshape -1,3,5,2; Transpose 0,2,3,1; Transpose 0,3,2,1; Transpose 0,3,2,1",
    ],
)
def test_movements_after_a_reshape_and_a_transpose_keep_their_order(moves):
    lines, constants = ["a = Q(x)", "m0 = Conv (a, w1)"], {}
    for number, move in enumerate(moves.split("; ")):
        kind, sizes = move.split()
        if kind == "Transpose":
            lines.append(f"m{number + 1} = Transpose <perm = [{sizes}]> (m{number})")
        else:
            constants[f"to{number}"] = np.array([int(size) for size in sizes.split(",")])
            lines.append(f"m{number + 1} = Reshape (m{number}, to{number})")
    last = len(moves.split("; "))
    model = network(
        "\n".join([*lines, f"q = Q(m{last})", "y = MatMul (q, w33)"]), "n, 4, 2, 5", "n"
    )
    random = np.random.default_rng(0)
    constants["w1"] = random.integers(-7, 8, (3, 4, 1, 1)).astype(np.float32) / 4
    constants["w33"] = random.integers(-7, 8, (3, 3)).astype(np.float32) / 4
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check(give(model, **constants), 2, shape=(3, 4, 2, 5))


def test_quantizers_of_floats_multiply_first():
    """Multiply floats of a region by a number per channel before one list of thresholds."""
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        d = Conv <pads = [1, 1, 1, 1]> (a, w, b)
        s = Mul (c, d)
        r = Mul (s, gains)
        q = Q(r)
        y = Conv (q, w2)"""
    model = network(body, y="n, 3, 4, 4")
    gains = (np.arange(3, dtype=np.float32) - 1.5).reshape(3, 1, 1)
    compiled = check(give(model, gains=gains), 3)
    (program,) = compiled.report.programs
    quantizers = [at for at in program.instructions if isinstance(at, p.Quantize)]
    assert [at.factors.size for at in quantizers] == [0, 0]


@pytest.mark.parametrize(
    "after",
    [
        "r = Mul (t, plane)\n q = Q(r)",  # it differs between the pixels
        "q = Q(t)\n other = Neg (t)",
        "r = Add (t, t)\n q = Q(r)",
    ],
)
def test_hoist_quantizers_keeps_concat_with_other_readers(after):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        t = Concat <axis = 1> (c, a)
        {after}
        y = Conv (q, w7)"""
    model = network(body, y="n, 2, 6, 6")
    if "other" in after:
        model.graph.output.append(onnx.helper.make_tensor_value_info("other", 1, None))
    weights = np.random.default_rng(0).integers(-7, 8, (2, 7, 1, 1)).astype(np.float32)
    plane = np.arange(6, dtype=np.float32) - 2
    check(give(model, w7=weights, plane=plane), 2, regions=2)


SAME = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"


def test_pool_codes_moves_quantizers_before_pyramid_pooling():
    body = f"""
        s = Softmax <axis = 1> (x)
        l = MaxPool <{SAME}> (s)
        p = MaxPool <{SAME}> (l)
        i = Mul (l, gains)
        j = Mul (p, more)
        d = Q(i)
        e = U(j)
        t = Concat <axis = 1> (d, e)
        y = Conv (t, w8)"""
    random = np.random.default_rng(0)
    model = give(
        network(body, y="n, 2, 6, 6"),
        w8=random.integers(-7, 8, (2, 8, 1, 1)).astype(np.float32),
        gains=np.float32([2, 3, 5, 1]).reshape(4, 1, 1),
        more=np.float32([7, 4, 9, 1]).reshape(4, 1, 1),
    )
    compiled = check(model, 1)
    assert {node.op_type for node in compiled.session_model.graph} == {"Softmax", "IntegerNetwork"}
    (program,) = compiled.report.programs
    kinds = Counter(type(item).__name__ for item in program.instructions)
    assert (kinds["Quantize"], kinds["MaxPool"]) == (2, 3)


@pytest.mark.parametrize(
    "after",
    [
        "n = Neg (l)\n q = Q(n)",  # decreasing
        "n = Mul (l, mixed)\n q = Q(n)",
        "n = Add (l, plane)\n q = Q(n)",  # it differs between the pixels
        "q = Q(l)\n other = Exp (l)",
    ],
)
def test_pool_codes_keeps_pooling_with_other_readers(after):
    body = f"""
        s = Softmax <axis = 1> (x)
        l = MaxPool <{SAME}> (s)
        {after}
        y = Conv (q, w)"""
    model = give(
        network(body, y="n, 3, 4, 4"),
        mixed=np.float32([1, -1, 1, 2]).reshape(4, 1, 1),
        plane=np.arange(6, dtype=np.float32) - 2,
    )
    if "other" in after:
        model.graph.output.append(onnx.helper.make_tensor_value_info("other", 1, None))
    compiled = check(model, 1)
    assert "MaxPool" in {node.op_type for node in compiled.session_model.graph}


def test_pool_codes_keeps_integer_pooling_before_float16():
    """Keep a pooling of integers, which would become one of float16."""
    model = parse(
        """g (int8[n, 2, 4, 4] x) => (float16[n, 2, 4, 4] y) {
            l = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)
            y = DequantizeLinear (l, half)
        }""",
        {"half": np.float16(0.5)},
        opset=19,
    )
    prepared = prepare_for_analysis(model)
    assert not pool_codes(prepared)
    assert [node.op_type for node in prepared.graph] == ["MaxPool", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("order", "back", "groups"),
    [
        ([0, 2, 1, 3, 4], [0, 6, 6, 6], [0, 2, 3, 6, 6]),
        ([0, 2, 1, 3, 4], [-1, 6, 6, 6], [0, 2, 3, 6, 6]),
        ([0, 1, 2, 4, 3], [0, 6, 6, 6], [0, 2, 3, 6, 6]),  # height and width
        ([0, 3, 2, 1, 4], [0, 6, 6, 6], [0, 2, 3, 6, 6]),
        ([0, 2, 1, 3, 4], [0, 6, 36], [0, 2, 3, 6, 6]),
        ([0, 1, 3, 5, 2, 4], [0, 24, 3, 3], [0, 6, 3, 2, 3, 2]),  # pixel unshuffle
        ([0, 3, 5, 1, 2, 4], [0, 24, 3, 3], [0, 6, 3, 2, 3, 2]),
        ([0, 1, 4, 2, 5, 3], [0, 1, 12, 18], [0, 1, 2, 3, 6, 6]),
    ],
)
def test_partition_supports_shuffles(order, back, groups):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        e = Q(c)
        t = Concat <axis = 1> (e, e)
        r = Reshape (t, groups)
        s = Transpose <perm = {order}> (r)
        u = Reshape (s, back)
        v = Reshape (u, whole)
        y = Conv (v, w6)"""
    model = network(body, y="n, 2, 6, 6")
    give(
        model,
        groups=np.array(groups),
        back=np.array(back),
        whole=np.array([-1, 6, 6, 6]),
        w6=np.random.default_rng(0).integers(-7, 8, (2, 6, 1, 1)).astype(np.float32),
    )
    check(model, 2)


def test_partition_supports_channels_last():
    body = """
        a = Q(x)
        t = Transpose <perm = [0, 2, 3, 1]> (a)
        c = MatMul (t, m)
        q = Q(c)
        y = Transpose <perm = [0, 3, 1, 2]> (q)"""
    check(network(body), 1)


def test_partition_splits_at_float_nodes():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        f = Softmax <axis = 1> (q)
        u = U(f)
        d = Conv <pads = [1, 1, 1, 1]> (u, w2)
        e = Q(d)
        y = Add (e, q)"""
    check(network(body), 2, regions=2)


def test_partition_gives_codes_and_floats_of_value():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        s = Softmax <axis = 1> (c)
        d = Conv <pads = [1, 1, 1, 1]> (q, w2)
        y = Add (s, d)"""
    report = check(network(body), 2).report
    assert [layer.output for layer in report.layers] == ["c", "d"]
    assert report.coverage == "2 of 2 layers, 100 % of MACs"
    assert text.make_layer_rows(report_compilation(report, "m"))[-1]["layer"] == "2 layers"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = Conv <pads = [1, 1, 1, 1]> (x, w)\ny = Q(c)", "its input 'x' is not quantized"),
        ('a = Q(x)\nc = ConvTranspose <auto_pad = "SAME_UPPER"> (a, wt)\ny = Q(c)', "automatic"),
    ],
)
def test_partition_reports_reasons(body, reason):
    model = network(body)
    weights = np.ones((4, 3, 3, 3), np.float32)
    compiled = check(give(model, wt=weights), 0, regions=0, of=1)
    assert reason in compiled.report.layers[0].reason


@pytest.mark.parametrize("after", ["", "r = Relu (t)\n q = U(r)\n y = Conv (q, one)"])
@pytest.mark.parametrize(
    "attributes",
    [
        "strides = [2, 2]",
        "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
        "strides = [3, 1], pads = [2, 0, 1, 3], output_padding = [2, 0]",
        "strides = [2, 3], dilations = [2, 1], pads = [0, 1, 2, 1]",
        "strides = [1, 2], group = 2, pads = [3, 1, 3, 0]",
        "strides = [2, 1], group = 4",
        "pads = [1, 1, 1, 1]",
    ],
)
def test_transposed_convolution_equals_graph(attributes, after):
    body = f"""
        a = Q(x)
        {"t" if after else "y"} = ConvTranspose <{attributes}> (a, wt, bt)
        {after}"""
    model = network(body, y="n, c, h, w")
    random = np.random.default_rng(2)
    groups = int(attributes[attributes.find("group") + 8]) if "group" in attributes else 1
    outputs = {1: 3, 2: 2, 4: 2}[groups]
    channels = outputs * groups
    weights = random.integers(-7, 8, (4, outputs, 4, 3)).astype(np.float32) / 4
    one = random.integers(-7, 8, (2, channels, 1, 1)).astype(np.float32)
    bias = random.integers(-7, 8, channels).astype(np.float32) / 4
    check(give(model, wt=weights, bt=bias, one=one), 2 if after else 1)


def test_depthwise_transposed_convolution_has_scale_per_channel():
    body = """
        a = Q(x)
        wt = DequantizeLinear <axis = 0> (codes, scales)
        t = ConvTranspose <strides = [2, 2], group = 4> (a, wt)
        y = Q(t)"""
    codes = np.random.default_rng(2).integers(-127, 128, (4, 1, 2, 2)).astype(np.int8)
    scales = np.float32([0.5, 1, 2, 0.25])
    check(give(network(body, y="n, 4, 12, 12"), codes=codes, scales=scales), 1)


@pytest.mark.parametrize(
    "move",
    [
        'DepthToSpace <blocksize = 2, mode = "CRD"> (c)',
        'DepthToSpace <blocksize = 2, mode = "CRD"> (q)',
        "DepthToSpace <blocksize = 2> (c)",
        "SpaceToDepth <blocksize = 2> (q)",
        "Transpose <perm = [0, 1, 3, 2]> (c)",
        "Transpose <perm = [0, 2, 1, 3]> (q)",
        "Expand (top, sizes)",
    ],
)
def test_partition_moves_elements(move):
    body = f"""
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w8)
        q = Q(c)
        top = Slice (q, zeros, ones, axes)
        d = {move}
        r = Relu (d)
        e = U(r)
        y = GlobalAveragePool (e)"""
    weights = np.random.default_rng(2).integers(-7, 8, (8, 4, 3, 3)).astype(np.float32) / 4
    constants = {"zeros": [0], "ones": [1], "axes": [1], "sizes": [1, 5, 1, 1]}
    model = network(body, y="n, c, 1, 1")
    check(give(model, w8=weights, **{key: np.int64(item) for key, item in constants.items()}), 1)


@pytest.mark.parametrize("places", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [[2, 2], [4, 2], [1, 4]])
def test_partition_interpolates(places, scales):
    body = f"""
        a = Q(x)
        t = Resize <mode = "linear", coordinate_transformation_mode = "{places}"> (a, , scales)
        r = LeakyRelu (t)
        q = Q(r)
        y = Conv <pads = [1, 1, 1, 1]> (q, w)"""
    model = network(body, x="n, 4, 6, 5", y="n, 3, h, w")
    check(give(model, scales=np.float32([1, 1, *scales])), 1, shape=(5, 4, 6, 5))


def test_partition_resizes_to_sizes_of_one_row():
    body = """
        a = Q(x)
        t = Resize <mode = "nearest"> (a, , , sizes)
        y = Conv <pads = [1, 1, 1, 1]> (t, w)"""
    model = network(body, x="1, 4, 6, 6", y="1, 3, 12, 9")
    check(give(model, sizes=np.int64([1, 4, 12, 9])), 1, shape=(1, 4, 6, 6))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMean", "ReduceSum"])
@pytest.mark.parametrize(
    ("axes", "keeps", "sizes"),
    [
        ([2, 3], 0, "4"),
        ([1], 1, "1, 6, 5"),
        ([1], 0, "6, 5"),
        ([-2], 1, "4, 1, 5"),
        ([3], 1, "4, 6, 1"),
        ([1, 2], 0, "5"),
    ],
)
def test_partition_reduces_axes(operator, axes, keeps, sizes):
    body = f"""
        a = Q(x)
        e = {operator} <keepdims = {keeps}> (a, axes)
        q = Q(e)
        f = Flatten (q)
        y = MatMul (f, ww)"""
    count = int(np.prod([int(size) for size in sizes.split(",")]))
    weights = np.random.default_rng(2).integers(-7, 8, (count, 3)).astype(np.float32) / 4
    model = give(network(body, x="n, 4, 6, 5", y="n, 3"), axes=np.int64(axes), ww=weights)
    model.opset_import[0].version = 18
    check(model, 1, shape=(5, 4, 6, 5))


def test_partition_leaves_sixteen_bits():
    body = "a = Q(x)\nc = Conv <pads = [1, 1, 1, 1]> (a, w)\ny = Q(c)"
    compiled = check(network(body, bits=16), 0, regions=0, of=1)
    assert "codes of more than 8 bits" in compiled.report.layers[0].reason


def test_analysis_leaves_layers_in_branches():
    body = """
        a = Q(x)
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = Q(c)
        y = If (yes) <then_branch = g () => (t) { t = Conv <pads = [1, 1, 1, 1]> (q, w2) },
            else_branch = h () => (e) { e = Neg (q) }>"""
    model = network(body)
    yes = onnx.helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, [])
    model.graph.input.append(yes)
    compiled = anybit.compile(model)
    assert compiled.report.coverage.startswith("1 of 2 layers")
    assert compiled.report.layers[1].reason == "it stands in a branch or a loop"
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
    for choice in (True, False):
        feeds = {"x": x, "yes": np.array(choice)}
        expected, got = anybit.load(model).run(feeds), compiled.run(feeds)
        np.testing.assert_array_equal(got["y"], expected["y"])


def test_analysis_separates_names_in_branches():
    body = """
        a = Q(x)
        f = If (yes) <then_branch = yes () => (t) { q = Q(x) t = Neg(q) },
            else_branch = no () => (e) { e = Neg (a) }>
        c = Conv <pads = [1, 1, 1, 1]> (a, w)
        q = LpNormalization <axis = 1> (c)
        g = GlobalAveragePool (q)
        k = Q(g)
        d = Conv <pads = [1, 1, 1, 1]> (k, w2)
        largest = ReduceMax <keepdims = 0> (f)
        y = Add (d, largest)"""
    model = network(body, y="n, 3, 1, 1")
    yes = onnx.helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, [])
    model.graph.input.append(yes)
    # Some versions of ONNX Runtime refuse such models, others do not.
    planned = find_regions(prepare_for_analysis(model), Guarantee.BOUNDED)
    assert [layer.layer.operator for layer in planned.layers] == ["Conv", "Conv"]
