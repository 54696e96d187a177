# SPDX-License-Identifier: Apache-2.0
"""Converted models in ONNX Runtime as everybody loads it: with default options."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from bombs import CHAINS
from places import MODELS, SMALL_MODELS, needs_models
from small_models import kinds, model, node

import anybit
from anybit.errors import OptionError
from anybit.onnx.conversion import Conversion, convert
from anybit.onnx.forms import Form
from anybit.onnx.trial import ReferenceRun, Trial, compute_reference, try_model

# A product whose integer operator rounds ties in another way, and one of 2-bit weights.
PRODUCT = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
graph (float[n, 4] x) => (float[n, 4] y) <float s = {0.5}, float t = {0.3}, float z = {0},
    float b = {%d}, float[4, 4] w = {1, -1, 1, 0, 0, 1, -1, 1, 1, 0, 1, 1, -1, 1, 0, 1}> {
    a = qonnx.custom_op.general.IntQuant(x, s, z, b)
    v = qonnx.custom_op.general.IntQuant(w, s, z, b)
    m = MatMul(a, v)
    y = qonnx.custom_op.general.IntQuant(m, t, z, b)
}"""


def plain(converted: Conversion, x: np.ndarray) -> np.ndarray:
    file = ir.to_proto(converted.model).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    loaded = onnxruntime.InferenceSession(file, options)
    return loaded.run(None, {loaded.get_inputs()[0].name: x})[0]


def product(bits: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(PRODUCT % bits)


# Not loaded up to 1.32. Up to 1.31 the same was true of 2-bit weights before a MatMul.
LARGEST = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
    graph (float[n, 1, 4, 4] x) => (float[n, 1, 2, 2] y)
    <float s = {0.1}, float z = {0}, float b = {4}> {
    q = qonnx.custom_op.general.IntQuant<signed = 0>(x, s, z, b)
    y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(q)
}"""


def largest() -> onnx.ModelProto:
    return onnx.parser.parse_model(LARGEST)


def test_trial_fences_models_that_fail_to_load() -> None:
    """4-bit codes before a MaxPool."""
    bare = convert(largest(), to="qdq", runtime="any")
    (remark,) = bare.remarks
    assert remark.startswith("1 node without a fence: y (has no kernels for such codes")
    assert try_model(bare.model) == Trial("does not load it", "session.disable_quant_qdq = 1")
    with pytest.raises(Exception, match=r"."):
        plain(bare, np.ones((1, 1, 4, 4), np.float32))
    converted = convert(largest(), to="qdq")
    x = np.float32(np.random.default_rng(0).normal(0, 2, (50, 1, 4, 4)))
    np.testing.assert_array_equal(plain(converted, x), anybit.load(largest()).run(x)["y"])
    (remark,) = converted.remarks
    assert remark.startswith("needs ONNX Runtime 1.20 or newer; default options keep its values")
    assert (
        "a Min fences 1 node against fusion to integer operators: y (has no kernels for such codes"
        in remark
    )
    assert kinds(converted.model).count("Min") == 1


POOLED = """<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
    graph (float[n, 2, 4, 4] x) => (float[n, 8] y)
    <float s = {0.1}, float z = {0}, float b = {4}, int64[2] rows = {0, -1}> {
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    f = Reshape(p, rows)
    y = qonnx.custom_op.general.IntQuant<signed = 0>(f, s, z, b)
}"""


def test_trial_bounds_moved_quantizers() -> None:
    """QuantizeLinear would go before the MaxPool, which takes no 4 bits."""
    model = onnx.parser.parse_model(POOLED)
    converted = convert(model, to="qdq")
    x = np.float32(np.random.default_rng(0).normal(0, 2, (50, 2, 4, 4)))
    np.testing.assert_array_equal(plain(converted, x), anybit.load(model).run(x)["y"])
    (remark,) = converted.remarks
    assert "default options keep its values" in remark
    assert "a Min fences 1 node against fusion to integer operators: p (has no kernels" in remark
    assert kinds(converted.model).count("Min") == 1
    back = convert(converted.model, to="qonnx")
    assert kinds(back.model) == ["MaxPool", "Reshape", "IntQuant"]


def test_trial_fences_are_gone_on_the_way_back() -> None:
    converted = convert(product(2), to="qdq")
    assert "Min" in kinds(converted.model)
    back = convert(converted.model, to="qonnx")
    assert kinds(back.model) == ["IntQuant", "IntQuant", "MatMul", "IntQuant"]


def test_trial_limit_of_the_next_quantizer_names_nothing() -> None:
    """Keep a limit that is not lower than its input, like a fence."""
    nodes = [
        node("Quant", "x s z b", "first", signed=0),
        node("Quant", "first s z b", signed=0),
    ]
    proto = model(nodes, {"s": 1.0, "z": 0, "b": 2}, inputs={"x": ["n"]})
    back = convert(convert(proto, to="qdq").model, to="qonnx").model
    assert [item.outputs[0].name for item in back.graph] == ["first", "y"]


def test_trial_limit_after_a_pair_stays() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    graph (float[n] x) => (float[n] y) <float s = {0.5}, int8 z = {0}, float limit = {63}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        y = Min(d, limit)
    }"""
    low = onnx.parser.parse_model(text)
    assert kinds(convert(low, to="qonnx").model) == ["IntQuant", "Min"]
    same = onnx.parser.parse_model(text.replace("63", "63.5"))
    assert kinds(convert(same, to="qonnx").model) == ["IntQuant"]


@needs_models
@pytest.mark.parametrize("form", [Form.QDQ, Form.QCDQ])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_trial_networks(name: str, form: Form) -> None:
    path = MODELS / f"{name}.onnx"
    converted = convert(path, to=form)
    x = np.load(path.with_suffix(".npz"))["x"][:1]
    (expected,) = anybit.load(path).run(x).values()
    # Sums of floats in another order; a quantization step is 1e-2.
    np.testing.assert_allclose(plain(converted, x), expected, rtol=0, atol=1e-5)
    assert "default options keep its values" in converted.remarks[-1]


@pytest.mark.parametrize(
    ("runtime", "form", "opset"),
    [
        ("onnxruntime", Form.QDQ, 25),
        ("onnxruntime=1.30.2", Form.QDQ, 25),
        ("onnxruntime=1.22", Form.QDQ, 17),
        ("onnxruntime=1.17", Form.QDQ, 17),
        ("openvino", Form.QDQ, 17),
        ("web", Form.QCDQ, 17),
        ("any", Form.QDQ, 25),
    ],
)
def test_trial_runtimes(runtime: str, form: Form, opset: int) -> None:
    converted = convert(product(2), runtime=runtime)
    assert converted.form is form
    assert converted.model.graph.opset_imports[""] == (
        21 if opset == 17 and form is Form.QDQ and "1.17" not in runtime else opset
    )
    assert convert(product(2), to="standard", runtime=runtime).form is Form.STANDARD


@pytest.mark.parametrize(
    "name", ["tensorrt", "onnxruntime=new", "onnxruntime=1", "onnxruntime=", "ONNX", ""]
)
def test_trial_other_runtimes(name: str) -> None:
    with pytest.raises(OptionError, match=r"runtime='.*' is unknown: use onnxruntime"):
        convert(product(2), runtime=name)


@pytest.mark.parametrize("version", ["1.16", "0.1", "9.9", "1.99", "2.0.1"])
def test_trial_versions_of_which_nothing_is_known(version: str) -> None:
    refused = rf"runtime='onnxruntime={version}' is unknown: .*1\.17 to onnxruntime=1\.\d\d, or"
    with pytest.raises(OptionError, match=refused):
        convert(product(2), runtime=f"onnxruntime={version}")


def test_trial_installed_version_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "__version__", "3.4.5")
    assert convert(product(2), runtime="onnxruntime=3.4").form is Form.QDQ
    monkeypatch.setattr(onnxruntime, "__version__", "1.17.3")
    assert convert(product(2), runtime="onnxruntime=1.20").form is Form.QDQ


def test_trial_neither_form_nor_runtime() -> None:
    with pytest.raises(OptionError, match=r"to must be one of .*or name the runtime"):
        convert(product(2))


def test_trial_skips_slow_models() -> None:
    loop = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        graph (float[n] x) => (float[n] y) <int64 most = {9223372036854775807}, bool yes = {1},
            float s = {0.5}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Loop(most, yes, d) <body = b (int64 i, bool c, float[n] v) => (bool e, float[n] w) {
                e = Identity(c)
                w = Neg(v)
            }>
        }"""
    )
    assert try_model(ir.from_proto(loop)) is None
    (remark,) = convert(loop, to="qdq").remarks
    assert "default options keep its values" in remark
    assert "tried" not in remark


@pytest.mark.parametrize(("count", "is_tried"), [(200, True), (400, False)])
def test_trial_skips_models_with_many_nodes(
    count: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anybit.onnx.trial._MOST_NODES", 300)
    model = CHAINS["native"](count)
    assert (try_model(ir.from_proto(model)) is not None) == is_tried
    (remark,) = convert(model, to="qdq").remarks
    assert ("tried with" in remark) == is_tried


def test_trial_reports_required_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences that are not proven to be needed, and do not help, are not kept."""
    always = lambda self, model: "does not load it"  # noqa: E731
    monkeypatch.setattr(ReferenceRun, "find_problem", always)
    converted = convert(product(2), to="qdq")
    (remark,) = converted.remarks
    assert "with session.disable_quant_qdq = 1: with default options" in remark
    assert "without a Min" not in remark
    bare = convert(product(2), to="qdq", runtime="any")
    proven = kinds(bare.model).count("Min") + 1
    assert kinds(converted.model).count("Min") == proven


def test_trial_check_reports_effects_of_default_options() -> None:
    bare = convert(largest(), runtime="any").model
    (actual,) = [
        finding
        for finding in anybit.check(bare, "onnxruntime")
        if finding.code == "default-options"
    ]
    assert "does not load it" in actual.problem
    assert "session.disable_quant_qdq = 1" in actual.remedy
    fenced = convert(largest(), to="qdq").model
    assert "default-options" not in {
        finding.code for finding in anybit.check(fenced, "onnxruntime")
    }


def test_trial_infinite_results_are_compared() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
    graph (float[n, 4] x) => (float[n, 4] y)
        <float s = {3e38}, float z = {0}, float b = {8}, float most = {3e38}> {
        w = Mul(x, most)
        y = qonnx.custom_op.general.IntQuant(w, s, z, b)
    }"""
    converted = convert(onnx.parser.parse_model(text), to="qdq")
    assert "default options keep its values" in converted.remarks[-1]


# A product of unsigned codes by two weights that leave 16 bits together, or do not.
SATURATING = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
graph (float[n, 4] x) => (float[n, 1] y) <float s = {%g}, float z = {0},
    float b = {8}, float t = {1}, float[4, 1] w = {%d, %d, 0, 0}> {
    r = Relu(x)
    a = qonnx.custom_op.general.IntQuant<signed = 0>(r, s, z, b)
    v = qonnx.custom_op.general.IntQuant(w, t, z, b)
    y = MatMul(a, v)
}"""


def test_trial_names_the_output_that_changes() -> None:
    proto = model([node("Relu", "x", "r", domain=""), node("Neg", "r", domain="")])
    x = np.ones((1, 4), np.float32)
    expected = {"y": np.float32([[-1, -1, -1, -2]])}
    problem = ReferenceRun(({"x": x},), (expected,)).find_problem(ir.from_proto(proto))
    assert problem == "changes output y of node 'the_Neg' (Neg) by up to 0.5 of its largest number"


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e4])
def test_trial_convert_fences_by_weights_and_not_by_inputs(scale: float) -> None:
    """Report possible saturation on any CPU, whatever this one computes."""
    converted = convert(onnx.parser.parse_model(SATURATING % (scale, 127, 127)), to="qdq")
    assert kinds(converted.model).count("Min") == 1
    assert "y (may saturate sums of 8-bit products" in converted.remarks[-1]
    safe = convert(onnx.parser.parse_model(SATURATING % (scale, -64, -64)), to="qdq")
    assert "Min" not in kinds(safe.model)
    assert safe.remarks[-1].endswith("1 MatMul may run in integers, whose sums overflow on no CPU")


def test_trial_convert_fences_each_node_for_itself() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
    graph (float[n, 4] x) => (float[n, 1] y, float[n, 1] u) <float s = {0.1}, float z = {0},
        float b = {8}, float t = {1}, float[4, 1] w = {127, 127, 0, 0},
        float[4, 1] m = {60, -60, 3, 0}> {
        r = Relu(x)
        a = qonnx.custom_op.general.IntQuant<signed = 0>(r, s, z, b)
        v = qonnx.custom_op.general.IntQuant(w, t, z, b)
        k = qonnx.custom_op.general.IntQuant(m, t, z, b)
        y = MatMul(a, v)
        u = MatMul(a, k)
    }"""
    converted = convert(onnx.parser.parse_model(text), to="qdq")
    (fence,) = (node for node in converted.model.graph if node.op_type == "Min")
    assert fence.outputs[0].name == "v"
    assert "a Min fences 1 node" in converted.remarks[-1]
    assert "1 MatMul may run in integers" in converted.remarks[-1]


@pytest.mark.parametrize("runtime", ["openvino", "any"])
def test_trial_convert_fences_nothing_for_other_runtimes(runtime: str) -> None:
    proto = onnx.parser.parse_model(SATURATING % (1, 127, 127))
    converted = convert(proto, to="qdq", runtime=runtime)
    assert "Min" not in kinds(converted.model)
    assert len(converted.remarks) == (runtime == "any")
    assert all(remark.startswith("1 node without a fence: ") for remark in converted.remarks)
    web = convert(proto, to="qdq", runtime="web")
    assert "Min" in kinds(web.model)
    assert web.remarks[-1].startswith("a Min fences 1 node against fusion to integer operators")


def test_trial_feeds_cover_ranges_of_quantizers() -> None:
    """Both branches of an If, and numbers of the size of its quantizers."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    graph (bool c, float[n, 64] x) => (float[n, 64] y) <float s = {1000}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        y = If(c) <then_branch = t () => (float[n, 64] u) { u = Neg(d) },
            else_branch = e () => (float[n, 64] v) { v = Abs(d) }>
    }"""
    reference = compute_reference(ir.from_proto(onnx.parser.parse_model(text)))
    assert reference is not None
    assert {bool(feeds["c"]) for feeds in reference.feeds} == {False, True}
    codes = [np.abs(expected["y"]).max() / 1000 for expected in reference.expected]
    assert max(codes) > 100
