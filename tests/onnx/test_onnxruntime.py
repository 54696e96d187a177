# SPDX-License-Identifier: Apache-2.0
"""The ONNX Runtime library: names, shapes, errors, threads. What it computes: test_cases.py."""

import ctypes
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import helper
from ort_backend import NODE, model, node, session
from x_types import as_x

import anybit
import anybit.onnxruntime
from anybit.onnx import runtime
from anybit.onnx.operators.registry import CANONICAL_DOMAINS
from anybit.ops import OPERATORS, Operator

QONNX = "qonnx.custom_op.general"
F32 = np.float32
X = np.linspace(-9, 9, 24, dtype=F32).reshape(2, 3, 4)
FOUR_BITS = {"scale": F32([0.5]), "zeropt": F32([0]), "bitwidth": F32([4])}
Y = anybit.int_quant(X, 0.5, 0, 4)


def int_quant(x: str, y: str, name: str = NODE, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("IntQuant", [x, *FOUR_BITS], [y], name, domain=QONNX, **attributes)


def quantizer(shape: Any = None, *others: onnx.NodeProto, **constants: np.ndarray) -> bytes:
    """x -> IntQuant -> q, and y from there if there are other nodes."""
    first = int_quant("x", "q" if others else "y")
    inputs, outputs = {"x": (F32, shape)}, {"y": (None, None)}
    return model([first, *others], inputs, outputs, FOUR_BITS | constants)


def example(operator: Operator) -> dict[str, np.ndarray]:
    """Parameters that every operator accepts, in the types it accepts.

    None for blocks, whose optional parameter depends on an attribute.
    """
    declared_inputs = operator.inputs[1:] if operator.block_axis is None else ()
    domains = {declared.name: declared.domain for declared in declared_inputs}
    return {
        name: np.ones(1, domain.dtypes[0] if domain and domain.dtypes else F32)
        for name, domain in domains.items()
    }


def example_node(operator: Operator, **attributes: Any) -> onnx.NodeProto:
    """Return the operator with attributes under the given spellings."""
    made = node(operator, ["x", *example(operator)], ["y"])
    made.attribute.extend(helper.make_attribute(*attribute) for attribute in attributes.items())
    return made


def load_example(operator: Operator, made: onnx.NodeProto) -> onnxruntime.InferenceSession:
    inputs, outputs = {"x": (as_x(operator, X).dtype, ["n", 3, 4])}, {"y": (None, None)}
    return session(model([made], inputs, outputs, example(operator)))


each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda item: item.name)


@each_operator
def test_session_every_name_and_domain_in_files(operator: Operator) -> None:
    x = as_x(operator, X)
    expected = operator.function(x, *example(operator).values())
    domains = [operator.onnx_domain]
    domains += [old for old, new in CANONICAL_DOMAINS.items() if new == operator.onnx_domain]
    for name, domain in itertools.product((operator.onnx_name, *operator.onnx_aliases), domains):
        made = example_node(operator)
        made.op_type, made.domain = name, domain
        (actual,) = load_example(operator, made).run(None, {"x": x})
        np.testing.assert_array_equal(actual, expected, strict=True)


@each_operator
def test_session_every_spelling_of_an_attribute_is_read(operator: Operator) -> None:
    for attribute in operator.attributes:
        for spelling in (attribute.onnx_name, *attribute.aliases):
            made = example_node(operator, **{spelling: 1.5})
            with pytest.raises(Exception, match=rf"{NODE}.*attribute {spelling} must be .*1\.5"):
                load_example(operator, made)


@pytest.mark.parametrize("value", ["yes", 2, -1, [1, 0], helper.make_tensor("t", 1, [1], [1])])
def test_session_flag_is_0_or_1(value: Any) -> None:
    shown = "a list" if not isinstance(value, int | str) else str(value)
    with pytest.raises(Exception, match=f"{NODE}.*attribute signed must .*{shown}"):
        load_example(OPERATORS[0], example_node(OPERATORS[0], signed=value))


@pytest.mark.parametrize(
    ("shape", "name", "value", "message"),
    [
        (None, "bitwidth", F32(2.5), r"bitwidth must be an integer >= 1, got 2\.5"),
        (["n", 3, 4], "scale", np.ones(5, F32), r"scale of shape \(5,\) does not broadcast"),
        ([2, 3, 4], "scale", np.ones((2, 1, 3, 1)), r"scale of shape .* does not broadcast"),
        (["n", "m"], "scale", np.ones((2, 1, 1)), r"scale of shape .* does not broadcast"),
        (None, "bitwidth", np.array(["4"], object), "bitwidth must be .* real numbers, got string"),
    ],
)
def test_session_constants_are_checked_when_a_model_is_loaded(
    shape: Any, name: str, value: Any, message: str
) -> None:
    constants = {"scale": FOUR_BITS["scale"], "bitwidth": FOUR_BITS["bitwidth"]}
    constants[name] = np.asarray(value)
    inputs = {"x": (F32, shape), "zeropt": (F32, None)}  # not all parameters need be constant
    unnamed = int_quant("x", "result", name="")
    with pytest.raises(Exception, match=f"node 'result' \\(IntQuant\\): {message}"):
        session(model([unnamed], inputs, {"result": (F32, None)}, constants))


def test_session_inputs_are_checked_at_every_run() -> None:
    inputs = {name: (array.dtype, [None]) for name, array in FOUR_BITS.items()}
    file = model([int_quant("x", "y")], {"x": (F32, None), **inputs}, {"y": (F32, None)}, {})
    loaded = session(file)
    for wrong, message in ((F32([0]), "got 0"), (F32([4, 4, 4]), r"\(3,\) does not broadcast")):
        with pytest.raises(Exception, match=f"{NODE}.*bitwidth .*{message}"):
            loaded.run(None, {"x": X, **FOUR_BITS, "bitwidth": wrong})
        np.testing.assert_array_equal(loaded.run(None, {"x": X, **FOUR_BITS})[0], Y)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 12])
def test_session_wrong_numbers_of_inputs(count: int) -> None:
    made = helper.make_node("Trunc", ["x"] * count, ["y"], NODE, domain=QONNX)
    with pytest.raises(Exception, match=f"{NODE}.*{count}"):
        session(model([made], {"x": (F32, [])}, {"y": (F32, None)}, {}))


@pytest.mark.parametrize("names", [["x", ""], ["x", "scale", "zeropt", ""], ["", "scale"]])
def test_session_required_inputs_without_a_name(names: list[str]) -> None:
    made = helper.make_node("IntQuant", names, ["y"], NODE, domain=QONNX)
    with pytest.raises(Exception, match=NODE):
        session(model([made], {"x": (F32, [2])}, {"y": (F32, None)}, FOUR_BITS))


def test_session_optional_input_without_a_name() -> None:
    format_ = {"scale": 1, "exponent_bitwidth": 4, "mantissa_bitwidth": 3, "exponent_bias": 7}
    constants = {name: F32([value]) for name, value in format_.items()}
    made = helper.make_node("FloatQuant", ["x", *format_, ""], ["y"], NODE, domain=QONNX)
    (y,) = session(model([made], {"x": (F32, None)}, {"y": (F32, None)}, constants)).run(
        None, {"x": X}
    )
    np.testing.assert_array_equal(y, anybit.float_quant(X, *format_.values()))


@pytest.mark.parametrize("shape", [[2, 3, 4], ["n", 3, 4], ["n", "m", "k"]])
def test_session_result_has_the_declared_shape(shape: list[Any]) -> None:
    assert session(quantizer(shape)).get_outputs()[0].shape == shape


@pytest.mark.parametrize("shape", [[2, 3, 4], ["n", None, 4], [None, None, None], None])
def test_session_shapes_flow_into_the_next_node(shape: Any) -> None:
    """Sizes and ranks that are not known must not become wrong ones."""
    matmul = helper.make_node("MatMul", ["q", "w"], ["y"])
    weights = np.ones((4, 5), F32)
    loaded = session(quantizer(shape, matmul, w=weights))
    np.testing.assert_array_equal(loaded.run(None, {"x": X})[0], Y @ weights)
    inferred = loaded.get_outputs()[0].shape
    assert -1 not in inferred
    assert inferred == [] if shape is None else inferred[-1] == 5


def test_session_unnamed_unknown_sizes_stay_apart() -> None:
    """Two of them are not one size, though neither has a name."""
    add = helper.make_node("Add", ["q", "w"], ["y"])
    loaded = session(quantizer([None, None], add, w=np.ones((2, 3, 4), F32)))
    assert len(set(loaded.get_outputs()[0].shape)) == 3


def test_session_type_of_the_result_follows_from_an_attribute() -> None:
    for dst, expected in (("s8", np.int8), ("u8", np.uint8)):
        made = helper.make_node("DynamicQuantize", ["x", "s"], ["q"], domain="anybit", dst=dst)
        identity = helper.make_node("Identity", ["q"], ["y"])
        file = model([made, identity], {"x": (F32, ["n"])}, {"y": (None, None)}, {"s": F32([1])})
        assert session(file).run(None, {"x": F32([300])})[0].dtype == expected
        contradiction = model([made], {"x": (F32, ["n"])}, {"q": (np.int32, None)}, {"s": F32([1])})
        with pytest.raises(Exception, match="int32"):
            session(contradiction)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_session_large_tensors_run_on_the_threads_of_the_runtime(threads: int) -> None:
    large = np.random.default_rng(0).normal(0, 9, (37, 8191)).astype(F32)
    scale = np.linspace(0.1, 1, 8191, dtype=F32)
    (y,) = session(quantizer(None, scale=scale), threads=threads).run(None, {"x": large})
    np.testing.assert_array_equal(y, anybit.int_quant(large, scale, 0, 4))


def test_one_session_in_many_threads() -> None:
    loaded = session(quantizer(["n", 3, 4]), threads=2)
    results: list[np.ndarray] = []

    def work() -> None:
        results.extend(loaded.run(None, {"x": X})[0] for _ in range(50))

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 400
    assert all(np.array_equal(y, Y) for y in results)


def test_session_subnormals_survive_a_runtime_that_flushes_them() -> None:
    tiny = F32([1e-40, -3e-42, 0])
    constants = FOUR_BITS | {"scale": F32([1e-42])}
    file = model([int_quant("x", "y")], {"x": (F32, None)}, {"y": (F32, None)}, constants)
    # Before: the first session of a process sets the mode of its thread for good, and NumPy's own
    # conversions and comparisons then take 1e-42 for 0.
    expected = anybit.int_quant(tiny, F32(1e-42), 0, 4)
    (y,) = session(file, entries={"session.set_denormal_as_zero": "1"}).run(None, {"x": tiny})
    assert y.tobytes() == expected.tobytes()
    assert y.view(np.uint32)[0] > 0


def test_session_memory_is_shared_only_where_no_one_reads_it_again() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),
        int_quant("n", "a", "first"),
        int_quant("a", "b", "second"),
        helper.make_node("Sum", ["n", "a", "b"], ["y"]),
    ]
    loaded = session(model(nodes, {"x": (F32, [2, 3, 4])}, {"y": (F32, None)}, FOUR_BITS))
    quantized = anybit.int_quant(-X, 0.5, 0, 4)
    np.testing.assert_array_equal(loaded.run(None, {"x": X})[0], -X + quantized + quantized)


def test_session_memory_of_long_models_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [int_quant("x", "q"), helper.make_node("Add", ["x", "q"], ["y"])]
    proto = model(nodes, {"x": (F32, [2, 3, 4])}, {"y": (F32, None)}, FOUR_BITS)
    planned = anybit.onnxruntime.session(proto)
    monkeypatch.setattr(runtime, "_MOST_NODES_TO_PLAN", 1)
    plain = anybit.onnxruntime.session(proto)
    reused = [item.get_session_options().enable_mem_reuse for item in (planned, plain)]
    assert reused == [True, False]
    expected = X + anybit.int_quant(X, 0.5, 0, 4)
    for item in (planned, plain):
        np.testing.assert_array_equal(item.run(None, {"x": X})[0], expected)


def test_session_nodes_in_subgraphs_read_constants_outside() -> None:
    inner = {
        "then_branch": int_quant("x", "then_y"),
        "else_branch": helper.make_node("Neg", ["x"], ["else_y"]),
    }
    branches = {
        name: helper.make_graph([item], name, [], [onnx.ValueInfoProto(name=item.output[0])])
        for name, item in inner.items()
    }
    choice = helper.make_node("If", ["c"], ["y"], **branches)
    inputs = {"x": (F32, ["n", 3, 4]), "c": (np.bool_, [])}
    loaded = session(model([choice], inputs, {"y": (F32, None)}, FOUR_BITS))
    (y,) = loaded.run(None, {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(y, Y)
    wrong = FOUR_BITS | {"bitwidth": F32([0])}
    with pytest.raises(Exception, match=f"{NODE}.*got 0"):
        session(model([choice], inputs, {"y": (F32, None)}, wrong))


def test_session_registering_again_changes_nothing() -> None:
    options = onnxruntime.SessionOptions()
    for _ in range(3):
        anybit.onnxruntime.register(options)
        options.register_custom_ops_library(anybit.onnxruntime.library_path())
    for _ in range(2):
        loaded = onnxruntime.InferenceSession(quantizer(), options)
        np.testing.assert_array_equal(loaded.run(None, {"x": X})[0], Y)


def test_session_library_shows_one_symbol() -> None:
    library = ctypes.CDLL(anybit.onnxruntime.library_path())
    assert library.RegisterCustomOps
    for other in ("anybit_native", "_ZN6anybit7kernelsEv"):
        assert not hasattr(library, other)


def test_a_session_from_every_kind_of_source(tmp_path: Path) -> None:
    file = quantizer(["n", 3, 4])
    path = tmp_path / "model.onnx"
    path.write_bytes(file)
    proto = onnx.load_model_from_string(file)
    options = onnxruntime.SessionOptions()
    for source in (path, str(path), file, proto, onnx_ir.from_proto(proto)):
        for arguments in (None, options):
            loaded = anybit.onnxruntime.session(source, session_options=arguments)
            np.testing.assert_array_equal(loaded.run(None, {"x": X})[0], Y)


def test_session_options_serve_several_models() -> None:
    """Large tensors of one model must not stay in options that the caller uses again."""
    options = onnxruntime.SessionOptions()
    x = np.ones((1, 200), F32)
    for value in (2, 3):
        weights = np.full((200, 200), value, F32)
        matmul = helper.make_node("MatMul", ["q", "w"], ["y"])
        file = quantizer([1, 200], matmul, w=weights)
        loaded = anybit.onnxruntime.session(file, session_options=options)
        np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], x @ weights)


def test_sessions_compute_the_graph_as_it_is_written() -> None:
    """-(-0.0 + 0) is -0.0, but not after the runtime has dropped the addition."""
    nodes = [helper.make_node(*item) for item in (("Neg", ["x"], ["a"]), ("Neg", ["b"], ["y"]))]
    nodes.insert(1, helper.make_node("Add", ["a", "zero"], ["b"]))
    file = model(nodes, {"x": (F32, [1])}, {"y": (F32, None)}, {"zero": np.array(0, F32)})
    (y,) = anybit.onnxruntime.session(file).run(None, {"x": F32([0])})
    assert np.signbit(y[0])


@pytest.mark.parametrize("domain", ["qonnx.custom_op.general", "finn.custom_op.general"])
def test_session_options_may_name_the_domains_that_they_need(domain):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("anybit.domains", "named")
    options.add_session_config_entry(f"anybit.domains.{domain}", "1")
    anybit.onnxruntime.register(options)
    proto = onnx.load_from_string(quantizer())
    proto.graph.node[0].domain = domain
    onnxruntime.InferenceSession(proto.SerializeToString(), options)
    proto.graph.node[0].domain = "onnx.brevitas"
    with pytest.raises(Exception, match=r"onnx\.brevitas"):
        onnxruntime.InferenceSession(proto.SerializeToString(), options)
