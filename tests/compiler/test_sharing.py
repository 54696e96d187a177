# SPDX-License-Identifier: Apache-2.0
"""Accumulators with several readers are computed once."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from mobile_net import mobile_net
from network_builder import Network
from networks import inputs, networks
from sum_counts import add_readers, count_computed_sums, count_sums
from text_models import FOUR, QUANTIZED, parse_lines, random_rows, random_weights

import anybit
from anybit.compiler.compiled import NetworkEngine
from anybit.compiler.coverage import find_float_readers
from anybit.compiler.partition import partitioner
from anybit.compiler.pipeline import find_regions
from anybit.onnx.preparation import prepare_for_analysis
from anybit.quant_types.layer_info import Guarantee

QUICK = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
LONG = settings(max_examples=90, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CONSTANTS = {
    **QUANTIZED,
    "two": 2.0,
    "w": random_weights(6, 4, 3, 3) / 4,
    "v": random_weights(6, 6, 1, 1) / 4,
    "u": random_weights(6, 6, 1, 1) / 4,
    "m": random_weights(6, 3) / 4,
    "k": random_weights(6, 4, 1, 1) / 4,
    "few": random_weights(6, 4, 1, 1, levels=1),
    "whole": np.array([0, 4, 6, -1]),
    "bias": np.linspace(-3, 3, 6, dtype="f"),
    "gain": np.linspace(-0.5, 1.5, 6, dtype="f").reshape(6, 1, 1),
}
CASES = {
    "codes and a graph output": (
        "c = Conv(q, w, bias)\na = Quant(c, one, z, b)\ny = Conv(a, v)",
        "c",
    ),
    "codes and a float node": (
        "c = Conv(q, w)\nr = Relu(c)\na = Quant(r, one, z, b)\nd1 = Conv(a, v)\n"
        "f = Softmax(r) axis=1\ny = Add(d1, f)",
        "",
    ),
    "a float node of an earlier value": (
        "c = Conv(q, w)\nr = Relu(c)\na = Quant(r, one, z, b)\nd1 = Conv(a, v)\n"
        "f = Softmax(c) axis=1\ny = Add(d1, f)",
        "",
    ),
    "float nodes of two values": (
        "c = Conv(q, w)\nr = Relu(c)\nf = Softmax(c) axis=1\ng = Softmax(r) axis=1\ny = Add(f, g)",
        "r",
    ),
    "two quantizers": (
        "c = Conv(q, w)\nr = Relu(c)\na = Quant(r, one, z, b)\ne = Quant(r, two, z, b)\n"
        "d1 = Conv(a, v)\nd2 = Conv(e, u)\ny = Add(d1, d2)",
        "",
    ),
    "two quantizers of 8 bits and an output": (
        "c = Conv(q, w)\na = Quant(c, one, z, b8)\ne = Quant(c, two, z, b8)\n"
        "d1 = Conv(a, v)\nd2 = Conv(e, u)\ny = Add(d1, d2)",
        "c",
    ),
    "two functions of one quantizer": (
        "c = Conv(q, w)\na = Quant(c, s, z, b8)\nh = HardSwish(a)\ne = Quant(h, one, z, b)\n"
        "o = Quant(a, two, z, b)\nd1 = Conv(e, v)\nd2 = Conv(o, u)\ny = Add(d1, d2)",
        "h",
    ),
    "a function that rises and falls": (
        "c = Conv(q, w)\nh = HardSwish(c)\na = Quant(h, one, z, b)\ny = Conv(a, v)",
        "c",
    ),
    "a gain per channel": (
        "c = Conv(q, w)\nn = Mul(c, gain)\na = Quant(n, one, z, b)\ny = Conv(a, v)",
        "c",
    ),
    "a pooling of codes": (
        "c = Conv(q, w)\nr = Relu(c)\np = MaxPool(r) kernel_shape=[2,2]\na = Quant(p, one, z, b)\n"
        "y = Conv(a, v)",
        "r",
    ),
    "channels that go to the end": (
        "c = Conv(q, w)\nt = Transpose(c) perm=[0,2,3,1]\na = Quant(t, one, z, b)\n"
        "y = MatMul(a, m)",
        "c",
    ),
    "a sum that is itself a tensor of codes": (
        "c = Conv(q, few)\nd1 = Conv(c, v)\nf = Softmax(c) axis=1\ny = Add(d1, f)",
        "",
    ),
    "a reshaped sum": (
        "c = Conv(q, w)\nt = Reshape(c, whole)\na = Quant(t, one, z, b)\ny = Conv(a, k)",
        "c",
    ),
    "a squeeze and excite gate": (
        "c = Conv(q, w)\nr = Relu(c)\na = Quant(r, one, z, b)\ng = Softmax(r) axis=1\n"
        "h = GlobalAveragePool(g)\ni = Quant(h, s, z, b)\nj = Conv(i, v)\nl = HardSigmoid(j)\n"
        "o = Quant(l, s, z, b)\nx1 = Mul(o, a)\nx2 = Quant(x1, s, z, b)\ny = Conv(x2, u)",
        "",
    ),
    "a residual sum with a float reader": (
        "c = Conv(q, w)\na = Quant(c, one, z, b)\nd1 = Conv(a, v)\ne = Quant(d1, one, z, b)\n"
        "o = Add(a, e)\ni = Quant(o, one, z, b)\nj = Conv(i, u)\nf = Softmax(o) axis=1\n"
        "g = Softmax(d1) axis=1\nh = Add(f, g)\ny = Add(h, j)",
        "",
    ),
    "regions that read the floats of regions": (
        "c = Conv(q, w)\nf = Softmax(c) axis=1\na = Quant(f, s, z, b)\nd1 = Conv(a, v)\n"
        "r = Relu(d1)\ng = Softmax(r) axis=1\ne = Quant(g, s, z, b)\no = Quant(r, one, z, b)\n"
        "i = Conv(e, u)\nj = Conv(o, u)\ny = Add(i, j)",
        "",
    ),
    "floats inside a region": (
        "c = Conv(q, w, bias)\na = Quant(c, one, z, b8)\nd1 = Conv(a, v)\no = Add(c, d1)\n"
        "r = Relu(o)\ne = Quant(r, one, z, b8)\nh = GlobalAveragePool(q)\ni = Quant(h, s, z, b)\n"
        "j = Conv(i, k)\nl = HardSigmoid(j)\nn = Mul(l, r)\nt = HardSwish(n)\n"
        "g = Quant(t, one, z, b8)\nx1 = Conv(g, v)\nx2 = Conv(e, u)\nx3 = Sub(x1, x2)\n"
        "f = Softmax(r) axis=1\ny = Add(x3, f)",
        "",
    ),
    "a mean with two readers": (
        "c = GlobalAveragePool(q)\na = Quant(c, s, z, b)\nd1 = Conv(a, k)\nf = Softmax(c) axis=1\n"
        "g = Quant(f, s, z, b)\nd2 = Conv(g, k)\n"
        "y = Add(d1, d2)",
        "",
    ),
}


def model_of(text: str, more: str) -> onnx.ModelProto:
    return parse_lines(f"{FOUR}\n{text}", CONSTANTS, (4, 8, 8), outputs=("y", *more.split()))


def compiled_once(text: str, more: str) -> anybit.CompiledModel:
    """Compile a model; check that each sum is computed once and that the outputs are the same."""
    proto = model_of(text, more)
    compiled = anybit.compile(proto)
    assert count_computed_sums(compiled) == count_sums(proto)
    x = random_rows(proto, 5)
    expected, got = anybit.load(proto).run(x), compiled.run(x)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    return compiled


@pytest.mark.parametrize("case", CASES)
def test_sharing_computes_sums_once(case):
    text, more = CASES[case]
    layers = compiled_once(text, more).report.layers
    assert len({layer.output for layer in layers}) == len(layers), "one line per layer"
    assert [layer.reason for layer in layers if layer.guarantee is None] == []


def test_sharing_uses_tables_after_non_monotonic_functions():
    """Use tables of the few codes before a function instead of its long sums."""
    constants = {**QUANTIZED, "w": random_weights(600, 64, levels=127), "m": random_weights(64, 4)}
    constants["gain"] = np.linspace(0.5, 1.5, 64, dtype="f")
    text = "c = MatMul(q, w)\na = Quant(c, t, z, b8)\nh = HardSwish(a)\nn = Mul(h, gain)"
    proto = parse_lines(
        f"q = Quant(x, s, z, b8)\n{text}\ne = Quant(n, t, z, b8)\nd = MatMul(e, m)\n"
        "y = Quant(d, t, z, b8)",
        {**constants, "t": 1024.0},
        (600,),
    )
    compiled = anybit.compile(proto)
    assert isinstance(compiled.engine, NetworkEngine)
    assert compiled.report.layers[0].levels == 256
    x = random_rows(proto, 9) * 8
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])


def test_sharing_keeps_network_without_session():
    text, more = CASES["two quantizers"]
    text = text.replace(
        "y = Add(d1, d2)",
        "d3 = Quant(d1, s, z, b)\nd4 = Quant(d2, s, z, b)\n"
        "d5 = Add(d3, d4)\ny = Quant(d5, one, z, b)",
    )
    compiled = compiled_once(text, more)
    assert isinstance(compiled.engine, NetworkEngine)
    assert compiled.run(np.zeros((0, 4, 8, 8), np.float32))["y"].shape == (0, 6, 6, 6)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sharing_float_outputs_are_read_by_threads(threads, set_threads):
    proto = model_of(*CASES["two quantizers of 8 bits and an output"])
    network, x = anybit.compile(proto), random_rows(proto, 300)
    expected = anybit.load(proto).run(x)
    set_threads(threads)
    for count in (1, 300):
        for name, array in network.run(x[:count]).items():
            np.testing.assert_array_equal(array, expected[name][:count])


ROUNDED = {
    **QUANTIZED,
    "s": 0.3,
    "one": 0.71,
    "two": 1.13,
    "w": random_weights(40, 3) * np.float32(0.1),
}
TWO = "a = Quant(c, one, z, b)\ne = Quant(c, two, z, b)\nd1 = MatMul(a, m)\nd2 = MatMul(e, m)"


def rounded(more: str) -> onnx.ModelProto:
    constants = {**ROUNDED, "m": random_weights(3, 3)}
    return parse_lines(f"{FOUR}\nc = MatMul(q, w)\n{TWO}\n{more}", constants, (40,))


def test_sharing_certifies_floats_read_by_quantizers_only():
    """Their last bits are those of one order of summation: only codes can be certified."""
    codes = anybit.compile(rounded("y = Add(d1, d2)"), guarantee="certified").report
    floats = anybit.compile(
        rounded("f = Softmax(c) axis=1\nd3 = Add(d1, d2)\ny = Add(d3, f)")
    ).report
    bent = anybit.compile(rounded("h = HardSwish(c)\nd3 = Quant(h, one, z, b)\ny = Add(d1, d3)"))
    assert [item.layers[0].output for item in (codes, floats, bent.report)] == ["c", "c", "c"]
    assert codes.layers[0].guarantee is Guarantee.CERTIFIED
    assert floats.layers[0].guarantee is Guarantee.BOUNDED
    assert bent.report.layers[0].guarantee is Guarantee.BOUNDED, "a float node computes HardSwish"


def test_exposed_omits_shared_floats_of_region(shell):
    """Their last bits may differ from those of a float sum; the codes may not."""
    proto = rounded("y = Add(d1, d2)")
    x = random_rows(proto, 200)
    anybit.save(proto, "slow.onnx")
    np.save("rows.npy", x)
    code, out, _ = shell("compile", "slow.onnx", "-o", "fast.onnx", "--verify", "rows.npy")
    assert code == 0, out
    assert "3 of 3 tensors of codes compared, all equal" in " ".join(out.split())
    names = anybit.compile(proto).saved("fast.onnx").run(x).keys()
    assert {"q", "a", "e", "y"} <= names
    assert "c" not in names


@pytest.mark.parametrize("scale", [0.3, 0.25])
def test_sharing_keeps_requested_guarantee(scale):
    proto = rounded("f = Softmax(c) axis=1\nd3 = Add(d1, d2)\ny = Add(d3, f)")
    (step,) = (item for item in proto.graph.initializer if item.name == "s")
    step.CopyFrom(onnx.numpy_helper.from_array(np.float32(scale), "s"))
    report = anybit.compile(proto, guarantee="certified").report
    assert report.layers[0].guarantee is None
    assert "only certified was asked for" in report.layers[0].reason
    assert count_computed_sums(anybit.compile(proto, guarantee="certified")) == count_sums(proto)


def test_coverage_names_float_reader():
    """Infinities are none of the numbers that a replay is proven for, and sums are too many."""
    constants = {
        **QUANTIZED,
        "w": random_weights(2000, 2, levels=127),
        "c": np.float32([np.inf, 0]),
    }
    text = "q = Quant(x, s, z, b8)\na = Gemm(q, w, c)\nf = Softmax(a) axis=1\ne = Quant(a, s, z, b)"
    proto = parse_lines(f"{text}\ny = Add(e, f)", constants, (2000,))
    compiled = anybit.compile(proto)
    assert compiled.report.layers[0].guarantee is None
    assert compiled.report.layers[0].reason == "n2 needs its floats, which no instruction gives"
    assert count_computed_sums(compiled) == 1


def test_coverage_excludes_layers_computed_in_float_too():
    proto = model_of(*CASES["codes and a float node"])
    planned = find_regions(prepare_for_analysis(proto), Guarantee.BOUNDED)
    assert not {layer.output for layer in planned.layers} & set(
        find_float_readers(planned.analyzed.model, planned.regions)
    )
    first, *others = planned.regions
    assert not others
    without = replace(first, outputs=tuple(v for v in first.outputs if v.name != "r"))
    assert find_float_readers(planned.analyzed.model, [without])["c"] == "n2"


def test_compile_covers_mobile_net():
    proto = mobile_net()
    compiled = anybit.compile(proto)
    left = {node.op_type for node in compiled.model.graph.all_nodes()}
    assert not left & {"Conv", "Gemm", "MatMul"}
    assert count_computed_sums(compiled) == count_sums(proto)
    assert compiled.report.coverage == "12 of 12 layers, 100 % of MACs"
    x = np.random.default_rng(1).normal(0, 1, (2, 3, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(
        compiled.run(x)["y"], anybit.load(proto).run(x)["y"], rtol=1e-5, atol=1e-5
    )


def check(network: Network) -> None:
    random = np.random.default_rng(network.seed)
    proto = add_readers(network.proto, random)
    compiled = anybit.compile(proto)
    assert count_computed_sums(compiled) == count_sums(proto)
    names = [layer.output for layer in compiled.report.layers]
    assert len(set(names)) == len(names)
    x = inputs(network, 3)
    expected, got = anybit.load(proto).run(x), compiled.run(x)
    for name, array in expected.items():
        assert got[name].shape == array.shape
        if {layer.guarantee for layer in compiled.report.layers} <= {"exact", None}:
            np.testing.assert_array_equal(got[name], array, err_msg=name)


@given(network=networks())
@QUICK
def test_sharing_computes_sums_of_random_networks_once(network):
    check(network)


def check_bits(network: Network) -> None:
    """Compile with and without sharing: both give the same."""
    proto = add_readers(network.proto, np.random.default_rng(network.seed))
    shared = anybit.compile(proto)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioner, "find_shared_values", lambda *_: {})
        apart = anybit.compile(proto)
    x = inputs(network, 3)
    expected, got = apart.run(x), shared.run(x)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


@given(network=networks())
@settings(QUICK, max_examples=15)
def test_sharing_changes_no_bits(network):
    check_bits(network)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))  # which workers share
@given(network=networks())
@LONG
def test_sharing_computes_sums_of_many_networks_once(network, part):
    check(network)
    check_bits(network)
