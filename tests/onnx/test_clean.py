# SPDX-License-Identifier: Apache-2.0
"""Cleaned models compute the same bits, hold no leftovers, and stay as they are when cleaned."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits, clean, shapes
from onnx import helper
from places import every_model, needs_models
from shell import Shell
from small_models import DOMAIN, kinds, model, node, quantized_input, quantized_weight

import anybit
from anybit.errors import OptionError
from anybit.model import load
from anybit.onnx.checks.checking import check
from anybit.onnx.files.writer import save

X = np.array([[0.3, -0.8, 1.2, 99]], np.float32)


def data(cleaned: ir.Model) -> bytes:
    return ir.to_proto(cleaned).SerializeToString(deterministic=True)


def assert_same(proto: onnx.ModelProto, cleaned: ir.Model, x: np.ndarray = X) -> None:
    """Equal bits before and after, and equal bytes when it is cleaned again."""
    expected, got = load(proto).run(x), load(ir.to_proto(cleaned)).run(x)
    assert expected.keys() == got.keys()
    for name in expected:
        assert expected[name].dtype == got[name].dtype
        assert expected[name].tobytes() == got[name].tobytes()
    assert data(clean(ir.to_proto(cleaned))) == data(cleaned)


def test_clean_weights_are_folded() -> None:
    proto, _ = quantized_weight()
    cleaned = clean(proto)
    assert kinds(cleaned) == ["MatMul"]
    assert list(cleaned.graph.initializers) == ["quantized"]
    assert_same(proto, cleaned)


def test_clean_quantizers_can_be_kept() -> None:
    proto, _ = quantized_weight()
    cleaned = clean(proto, keep_quantizers=True)
    assert kinds(cleaned) == ["IntQuant", "MatMul"]
    assert load(ir.to_proto(cleaned)).run(X)["y"].tobytes() == load(proto).run(X)["y"].tobytes()


def test_clean_names_that_a_target_looks_for() -> None:
    proto, _ = quantized_weight()
    cleaned = clean(ir.to_proto(clean(proto, keep_quantizers=True)), target="finn")
    assert kinds(cleaned) == ["Quant", "MatMul"]
    assert data(clean(ir.to_proto(cleaned), target="finn")) == data(cleaned)
    assert check(ir.to_proto(cleaned), "finn") == ()
    assert kinds(clean(proto, target="hls4ml")) == ["IntQuant", "MatMul"]
    with pytest.raises(OptionError, match="finn, hls4ml, got 'qdq'"):
        clean(proto, target="qdq")


def test_clean_leftovers_go() -> None:
    nodes = [
        node("Identity", "x", "a", domain="", name=""),
        node("Dropout", "a", "b mask", domain=""),
        node("Add", "one one", "two", domain=""),
        node("Quant", "b half zero four", "c", rounding_mode="round"),
        node("Neg", "b", "dead", domain=""),
        node("Mul", "c two", "d", domain=""),
        node("Identity", "d", domain="", name="last"),
    ]
    constants = {"one": 1, "half": 0.5, "zero": 0, "four": 4, "unused": np.ones(9, np.float32)}
    proto = model(nodes, constants, opsets={DOMAIN: 1, "elsewhere": 3})
    cleaned = clean(proto)
    assert kinds(cleaned) == ["IntQuant", "Mul"]
    assert set(cleaned.graph.initializers) == {"half", "zero", "four", "two"}
    assert set(cleaned.graph.opset_imports) == {"", DOMAIN}
    assert_same(proto, cleaned)


def test_clean_node_names() -> None:
    nodes = [
        node("Neg", "x", "a", domain="", name="n"),
        node("Neg", "a", "b", domain="", name=""),
        node("Neg", "b", "c", domain="", name="n_0"),
        node("Neg", "c", domain="", name="n"),
    ]
    cleaned = clean(model(nodes))
    assert [item.name for item in cleaned.graph] == ["n", "Neg", "n_0", "n_1"]
    assert data(clean(ir.to_proto(cleaned))) == data(cleaned)


@pytest.mark.parametrize(
    ("nodes", "outputs", "kept"),
    [
        ([("x", "y")], ["y"], 1),
        ([("one", "y")], ["y"], 0),  # folded
        ([("x", "a"), ("a", "y")], ["y"], 1),
        ([("t", "y"), ("t", "z")], ["y", "z"], 1),
        ([("t", "y")], ["t", "y"], 1),
        ([("t", "a"), ("a", "y")], ["y"], 0),
    ],
)
def test_clean_inputs_and_outputs_keep_their_names(
    nodes: list[tuple[str, str]], outputs: list[str], kept: int
) -> None:
    made = [node("Neg", "x", "t", domain="", name="neg")]
    made += [node("Identity", *pair, domain="", name=f"i{at}") for at, pair in enumerate(nodes)]
    proto = model(made, {"one": np.ones((1, 4), np.float32)}, outputs=outputs)
    cleaned = clean(proto)
    assert kinds(cleaned).count("Identity") == kept
    assert [value.name for value in cleaned.graph.outputs] == outputs
    assert_same(proto, cleaned)


@pytest.mark.parametrize(("end", "stays"), [(2**63 - 1, False), (2**31 - 1, True)])
def test_clean_slices_of_whole_axes_go(end: int, stays: bool) -> None:
    bounds = {"zero": 0, "end": end, "axis": 1, "one": 1}
    constants = {name: np.array([value], np.int64) for name, value in bounds.items()}
    nodes = [node("Slice", "x zero end axis one", "s", domain=""), node("Neg", "s", domain="")]
    proto = model(nodes, constants, inputs={"x": ["n", "m"]})
    cleaned = clean(proto)
    assert kinds(cleaned) == ["Slice", "Neg"][not stays :]
    assert_same(proto, cleaned)


def test_clean_identities_inside_branches() -> None:
    branch = [
        helper.make_graph(
            [helper.make_node("Identity", [source], [name], name=name)],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)],
        )
        for source, name in (("x", "then"), ("t", "other"))
    ]
    nodes = [
        node("Neg", "x", "t", domain="", name="neg"),
        helper.make_node("If", ["yes"], ["y"], "if", then_branch=branch[0], else_branch=branch[1]),
    ]
    proto = model(nodes, {"yes": np.array(False)})
    assert_same(proto, clean(proto))


def test_clean_local_functions_are_inlined() -> None:
    body = [
        helper.make_node("Quant", ["a", "s", "z", "b"], ["q"], domain=DOMAIN, name="q"),
        helper.make_node("Neg", ["q"], ["c"]),
    ]
    rounding = onnx.AttributeProto(name="rounding_mode", type=3, ref_attr_name="mode")
    body[0].attribute.append(rounding)
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function(
        "mine", "Block", ["a", "s", "z", "b"], ["c"], body, imports, attributes=["mode"]
    )
    proto = model(
        [node("Block", "x s z b", domain="mine", mode="ceil")],
        {"s": 0.5, "z": 0, "b": 4},
        opsets={DOMAIN: 1, "mine": 1},
    )
    proto.functions.append(function)
    cleaned = clean(proto)
    assert kinds(cleaned) == ["IntQuant", "Neg"]
    assert not cleaned.functions
    assert load(ir.to_proto(cleaned)).run(X)["y"].tolist() == [[-0.5, 0.5, -1.5, -3.5]]


def test_clean_every_value_gets_a_shape() -> None:
    cleaned = clean(quantized_input())
    assert shapes(cleaned) == ["[1,4]", "[1,4]"]


@needs_models
@every_model
def test_clean_real_models(path: Path, tmp_path: Path) -> None:
    """Bit for bit, for the recorded inputs, at three batch sizes; twice is once."""
    with np.load(path.with_suffix(".npz")) as arrays:
        x = np.concatenate([arrays["x"]] * 6)[:6]
    (expected,) = load(path).run(x).values()
    for options in (
        {},
        {"keep_quantizers": True},
        {"target": "finn"},
        {"batch": "dynamic"},
        {"batch": 3},
    ):
        cleaned = clean(path, **options)
        first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
        save(cleaned, first)
        save(clean(first, **options), second)
        assert first.read_bytes() == second.read_bytes()
        network = load(first)
        (output,) = network.run(x).values()
        assert_array_bits(output, expected)
        if options == {"batch": "dynamic"}:
            assert not isinstance(network.inputs[0].shape[0], int)
            rows = [next(iter(network.run(x[at : at + 1]).values())) for at in range(3)]
            assert_array_bits(next(iter(network.run(x[:3]).values())), np.concatenate(rows))


def test_clean_command(shell: Shell) -> None:
    code, out, err = shell("clean", "model.onnx", "-o", "out.onnx")
    assert (code, err) == (0, "")
    assert out.startswith("out.onnx written: 1 node (was 1), ")
    assert shell("check", "out.onnx") == (0, "no problems found\n", "")
    assert shell("clean", "model.onnx", "--batch", "dynamic", "--output", "free.onnx")[0] == 0
    assert load("free.onnx").inputs[0].shape == ("batch", 4)
    assert shell("clean", "free.onnx", "--batch", "2", "-o", "free.onnx")[0] == 0
    assert load("free.onnx").inputs[0].shape == (2, 4)
    code, out, _ = shell("clean", "model.onnx", "--target", "finn", "-o", "finn.onnx")
    assert code == 0
    assert out.splitlines()[1] == (
        "It takes x: float32[1, 4]. anybit check finn.onnx --target finn: no problems found."
    )
    assert onnx.load("finn.onnx").graph.node[0].op_type == "Quant"
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "-o", "out.onnx"], "no such file"),
        (["model.onnx", "-o", "nowhere/out.onnx"], "folder that exists"),
        (["model.onnx", "-o", "out.onnx", "--batch", "0"], "got 0"),
        (["model.onnx", "-o", "out.onnx", "--batch", "some"], "got 'some'"),
        (["model.onnx", "-o", "out.onnx", "--target", "tpu"], "got 'tpu'"),
        (["model.onnx"], "output"),
    ],
)
def test_clean_bad_commands(shell: Shell, arguments: list[str], message: str) -> None:
    assert message in shell.fails("clean", *arguments)
    assert not Path("out.onnx").exists()


def test_clean_long_name_of_the_standard_domain() -> None:
    """Keep the version of a standard domain that is imported as "ai.onnx"."""
    proto = model([node("Dropout", "x", "kept", domain=""), node("Relu", "kept", domain="")])
    proto.opset_import[0].domain = "ai.onnx"
    cleaned = clean(proto)
    assert cleaned.graph.opset_imports == {"": 13}
    assert kinds(cleaned) == ["Relu"]
    assert anybit.convert(proto, to="qdq").model.graph.opset_imports[""] >= 13
