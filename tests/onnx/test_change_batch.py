# SPDX-License-Identifier: Apache-2.0
"""Another number of rows: the same rows come out, or there is an error."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits, clean, shapes
from places import EXAMPLE
from small_models import array, model, node, quantized_input

from anybit.errors import ModelError
from anybit.model import load


def reshaped(target: Any, shape: list[int | str], **options: Any) -> onnx.ModelProto:
    nodes = [
        node("Relu", "x", "a", domain="", name="relu"),
        node("Reshape", "a target", domain="", name="reshape", **options),
    ]
    constants = {"target": np.array(target, np.int64)}
    return model(nodes, constants, inputs={"x": shape}, opsets={"": 14})


@pytest.mark.parametrize(
    ("proto", "after"),
    [
        (reshaped([1, -1], [1, 2, 3]), "[batch,6]"),
        (reshaped([1, 6], [1, 2, 3]), "[batch,6]"),
        (reshaped([-1, 6], [1, 2, 3]), "[batch,6]"),
        (reshaped([0, 6], [1, 2, 3]), "[batch,6]"),
        (reshaped([1, 6], [1, 2, 3], allowzero=1), "[batch,6]"),
        (reshaped([4, 3, 2], [4, 2, 3]), "[batch,3,2]"),
        (reshaped([1, 2, 1, 3], [1, 2, 3]), "[batch,2,1,3]"),
    ],
)
def test_change_batch_free_batches(proto: onnx.ModelProto, after: str) -> None:
    freed = clean(proto, batch="dynamic")
    assert shapes(freed)[1] == after
    expected = load(proto)
    x = np.arange(-10, 62, dtype=np.float32).reshape(-1, 2, 3)
    assert_array_bits(load(ir.to_proto(freed)).run(x)["y"], expected.run(x)["y"])
    fixed = clean(proto, batch=3)
    assert shapes(fixed)[1] == after.replace("batch", "3")
    assert shapes(clean(ir.to_proto(freed), batch=3)) == shapes(fixed)
    again = clean(
        ir.to_proto(fixed), batch=int(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
    )
    assert load(ir.to_proto(again)).run(x)["y"].tobytes() == expected.run(x)["y"].tobytes()


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (reshaped([2, 3], [1, 2, 3]), r"'reshape' .*reshapes to \[2, 3\], which fixes the batch"),
        (reshaped([-1], [1, 2, 3]), r"'reshape' .*\[-1\]"),
        (model([node("ReduceSum", "x", domain="", keepdims=0)]), "computes with all rows together"),
        (model([node("Size", "x", domain="")]), "output 'y' has the shape"),
        (model([node("Add", "x c", domain="")], {"c": array(np.ones((2, 4), np.float32))},
               inputs={"x": [2, 4]}), "output 'y'"),
        (model([node("XnorPopcountMatMul", "x")]), "output 'y' has the shape unknown"),
        (model([node("Neg", "x", domain="")], inputs={"x": []}), "input 'x' has no first axis"),
        (model([node("Neg", "c", domain="")], {"c": array(np.ones(2, np.float32))}, inputs={}),
         "no input"),
    ],
)  # fmt: skip
def test_batches_that_cannot_change(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        clean(proto, batch="dynamic")


@pytest.mark.parametrize(("target", "fits"), [([5, 2, 6], True), ([5, 2, -1], True),
                                              ([5, -1, 6], True), ([5, 4, 3], False),
                                              ([2, 5, 6], False)])  # fmt: skip
def test_a_batch_after_another_axis(target: list[int], fits: bool) -> None:
    """Reshape as after recurrent layers: steps, rows, features."""
    nodes = [
        node("Transpose", "x", "t", domain="", name="t", perm=[1, 0, 2, 3]),
        node("Reshape", "t target", "r", domain="", name="reshape"),
        node("Transpose", "r", domain="", name="back", perm=[1, 0, 2]),
    ]
    proto = model(nodes, {"target": np.array(target)}, inputs={"x": [2, 5, 3, 2]})
    if not fits:
        with pytest.raises(ModelError, match="'reshape'"):
            clean(proto, batch=3)
        return
    x = np.arange(180, dtype=np.float32).reshape(6, 5, 3, 2)
    for batch in (3, "dynamic"):
        changed = load(clean(proto, batch=batch))
        assert_array_bits(changed.run(x)["y"], load(proto).run(x)["y"])


@pytest.mark.parametrize("batch", [0, -1, 2.5, "many"])
def test_change_batch_refuses_invalid_sizes(batch: Any) -> None:
    with pytest.raises(ModelError, match="batch must be an integer >= 1"):
        clean(quantized_input(), batch=batch)


def test_change_batch_changes_only_tensors_with_the_batch() -> None:
    nodes = [node("MatMul", "x w", "y", domain="", name="m"), node("Neg", "w", "z", domain="")]
    proto = model(nodes, inputs={"x": [1, 4], "w": [4, 3]}, outputs=["y", "z"])
    assert shapes(clean(proto, batch="dynamic")) == ["[batch,4]", "[4,3]", "[batch,3]", "[4,3]"]


def test_change_batch_free_size_keeps_its_name() -> None:
    assert shapes(clean(EXAMPLE, batch="dynamic")) == ["[rows,8,8]", "[rows,10]"]
    assert shapes(clean(EXAMPLE, batch=7)) == ["[7,8,8]", "[7,10]"]
    taken = model([node("Neg", "x", domain="")], inputs={"x": [1, "batch"]})
    assert shapes(clean(taken, batch="dynamic"))[0] == "[batch_1,batch]"


@pytest.mark.parametrize(
    ("target", "batch", "message"),
    [
        ([2, 12], 3, r"'reshape' .* reshapes to \[2, 12\], which 18 elements, with batch 3"),
        ([5, -1], 3, r"'reshape' .* reshapes to \[5, -1\], which 18 elements"),
        ([0, 4], 4, r"'reshape' .* reshapes to \[0, 4\], which 24 elements"),
    ],
)
def test_change_batch_free_batches_that_cannot_be_that_long(
    target: Any, batch: int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        clean(reshaped(target, ["n", 2, 3]), batch=batch)


def test_change_batch_refuses_contradicting_outputs() -> None:
    proto = reshaped([1, -1], ["n", 2, 3])
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "k"])
    )
    with pytest.raises(ModelError, match="output 'y' has 1 rows, where the model declares 3"):
        clean(proto, batch=3)
    assert shapes(clean(proto, batch=1)) == ["[1,2,3]", "[1,6]"]


def test_change_batch_from_free_to_fixed_keeps_results() -> None:
    """Also where rows are mixed: so the file says."""
    proto = reshaped([-1, 2], ["n", 2, 3])
    x = np.arange(-9, 9, dtype=np.float32).reshape(3, 2, 3)
    fixed = clean(proto, batch=3)
    assert shapes(fixed) == ["[3,2,3]", "[9,2]"]
    assert_array_bits(load(ir.to_proto(fixed)).run(x)["y"], load(proto).run(x)["y"])


def one(kind: str, shape: list[int], inputs: str = "x", **options: Any) -> onnx.ModelProto:
    constants = {"axes": np.array([0]), "none": np.zeros(0, np.int64), "w": np.ones((4, 2))}
    constants = {name: item for name, item in constants.items() if name in inputs.split()}
    constants = {name: item.astype(np.float32) if name == "w" else item
                 for name, item in constants.items()}  # fmt: skip
    nodes = [
        node(kind, inputs, "a", domain="", name="mixes", **options),
        node("Add", "x a", domain="", name="add"),
    ]
    return model(nodes, constants, inputs={"x": shape}, opsets={"": 18})


@pytest.mark.parametrize(
    ("proto", "mixed"),
    [
        (one("Softmax", [2, 4], axis=0), True),
        (one("Softmax", [2, 4], axis=1), False),
        (one("Softmax", [2, 4]), False),
        (one("LogSoftmax", [2, 4], axis=-2), True),
        (one("ReduceMean", [2, 4], "x axes"), True),
        (one("ReduceMean", [2, 4]), True),
        (one("ReduceMax", [2, 4], noop_with_empty_axes=1), False),
        (one("CumSum", [2, 4], "x axes"), True),
        (one("LpNormalization", [2, 4], axis=0), True),
        (one("LpNormalization", [2, 4]), False),
    ],
)
def test_change_batch_rows_that_are_mixed(proto: onnx.ModelProto, mixed: bool) -> None:
    if mixed:
        with pytest.raises(ModelError, match=r"node 'mixes' .* computes with all rows together"):
            clean(proto, batch=3)
        return
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    three = load(ir.to_proto(clean(proto, batch=3)))
    assert_array_bits(three.run(x)["y"], load(proto).run(x)["y"])


def test_change_batch_products_over_rows_and_recurrence_along_them() -> None:
    nodes = [
        node("Transpose", "x", "t", domain="", name="t"),
        node("MatMul", "t x", "m", domain="", name="mixes"),
        node("MatMul", "x m", domain="", name="last"),
    ]
    with pytest.raises(ModelError, match="node 'mixes'"):
        clean(model(nodes, inputs={"x": [2, 4]}), batch="dynamic")
    weights = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}
    recurrent = node("LSTM", "x w r", "a", domain="", name="mixes", hidden_size=4)
    proto = model([recurrent, node("Squeeze", "a axes", domain="")],
                  weights | {"axes": np.array([1])}, inputs={"x": [5, 2, 3]})  # fmt: skip
    with pytest.raises(ModelError, match="node 'mixes'"):
        clean(proto, batch="dynamic")


@pytest.mark.parametrize("state", [0, 1])
def test_states_that_are_stored_for_one_batch(state: float) -> None:
    constants = {
        "w": np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 16, 3),
        "r": np.linspace(1, -1, 64, dtype=np.float32).reshape(1, 16, 4),
        "h": np.full((1, 2, 4), state, np.float32),
        "axes": np.array([1]),
    }
    nodes = [
        node("Transpose", "x", "t", domain="", name="t", perm=[1, 0, 2]),
        onnx.helper.make_node("LSTM", ["t", "w", "r", "", "", "h", "h"], ["a"], "l", hidden_size=4),
        node("Squeeze", "a axes", "s", domain="", name="s"),
        node("Transpose", "s", domain="", name="back", perm=[1, 0, 2]),
    ]
    proto = model(nodes, constants, inputs={"x": [2, 5, 3]})
    if state:
        with pytest.raises(ModelError, match=r"'l' .* reads 'h', which is stored for the rows"):
            clean(proto, batch=3)
        return
    x = np.linspace(-1, 1, 90, dtype=np.float32).reshape(6, 5, 3)
    for batch in (3, "dynamic"):
        assert_array_bits(load(clean(proto, batch=batch)).run(x)["y"], load(proto).run(x)["y"])
