# SPDX-License-Identifier: Apache-2.0
"""Programs as nodes of models: files, sessions, checker, commands."""

import numpy as np
import onnx
import onnx_ir as ir
import programs as made
import pytest

import anybit
import anybit.onnx
from anybit import errors
from anybit.compiler.backends.onnx_node import OnnxNode, read_encoded
from anybit.compiler.program import reference
from anybit.compiler.program.encoding import encode
from anybit.compiler.program.network import Network
from anybit.onnx.operators.integer_network import PROGRAM


def program_of_seed(seed):
    return made.make_program(made.FromGenerator(np.random.default_rng(seed)))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "network.onnx"
    anybit.onnx.save(OnnxNode().emit(Network(program_of_seed(0))), path)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_onnx_node_equals_reference_in_session(seed, tmp_path):
    program = program_of_seed(seed)
    path = tmp_path / "network.onnx"
    anybit.onnx.save(OnnxNode().emit(Network(program)), path)
    inputs = made.inputs_for(program, 3, seed)
    actual = anybit.load(path).run({f"x{i}": x for i, x in enumerate(inputs)})
    results = list(actual.values()) if isinstance(actual, dict) else [actual]
    for one, other in zip(results, reference.run(program, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def declare_axes(message, names):
    """Declare inputs of the model of a program with further axes in front."""
    for value in message.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_value for dim in dims][1:]
        del dims[:]
        for name in names:
            dims.add(dim_param=f"{name}_{value.name}")
        for size in sizes:
            dims.add(dim_value=size)
    for value in message.graph.output:
        value.type.tensor_type.ClearField("shape")
    return message.SerializeToString()


@pytest.mark.parametrize("axes", [(2, 3), (1, 2, 3, 1)])
def test_onnx_node_takes_several_axes_of_rows(axes):
    program = program_of_seed(3)
    message = ir.to_proto(OnnxNode().emit(Network(program)))
    model = anybit.load(declare_axes(message, [f"n{i}" for i in range(len(axes))]))
    rows = int(np.prod(axes))
    inputs = made.inputs_for(program, rows, 0)
    actual = model.run({f"x{i}": x.reshape(*axes, *x.shape[1:]) for i, x in enumerate(inputs)})
    results = list(actual.values()) if isinstance(actual, dict) else [actual]
    for one, other in zip(results, reference.run(program, inputs), strict=True):
        np.testing.assert_array_equal(one, other.reshape(*axes, *other.shape[1:]), strict=True)


def test_onnx_node_refuses_inputs_of_other_rows():
    seeds = (seed for seed in range(100) if len(program_of_seed(seed).inputs) > 1)
    program = program_of_seed(next(seeds))
    message = ir.to_proto(OnnxNode().emit(Network(program)))
    model = anybit.load(declare_axes(message, ["n", "m"]))
    arrays = made.inputs_for(program, 6, 0)
    inputs = {f"x{i}": x.reshape(3 - i % 2, -1, *x.shape[1:]) for i, x in enumerate(arrays)}
    with pytest.raises(errors.AnybitError, match=r"input 1 must be float32 of shape \(3, 2, "):
        model.run(inputs)


def test_onnx_node_passes_checker(path):
    anybit.onnx.register()
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True, check_custom_domain=True)
    del model.graph.node[0].input[2:]
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model, check_custom_domain=True)


def test_read_encoded_returns_program(path):
    expected = encode(program_of_seed(0))
    node = anybit.onnx.read(path).graph[0]
    for part in PROGRAM:
        np.testing.assert_array_equal(
            getattr(read_encoded(node), part), getattr(expected, part), strict=True
        )


def test_read_encoded_refuses_computed_program(path):
    node = anybit.onnx.read(path).graph[0]
    node.replace_input_with(0, ir.Value(name="other"))
    with pytest.raises(errors.ModelError, match="needs words as an initializer"):
        read_encoded(node)


@pytest.mark.parametrize("command", ["check", "inspect", "run"])
def test_onnx_node_is_accepted_by_commands(path, command, shell):
    code, out, err = shell(command, str(path))
    assert code == 0, err
    assert out


@pytest.mark.parametrize("form", ["standard", "qdq", "qonnx"])
def test_convert_keeps_onnx_node(path, form, tmp_path):
    converted = anybit.convert(path, to=form).model
    assert [node.op_type for node in converted.graph] == ["IntegerNetwork"]
