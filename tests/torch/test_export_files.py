# SPDX-License-Identifier: Apache-2.0
"""What an exported file holds, what the report says, and what is refused."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import anybit

torch = pytest.importorskip("torch", reason="PyTorch makes these models")

from torch_modules import Call, Weighted, bits, numbers  # noqa: E402  needs torch

import anybit.torch as ours  # noqa: E402
from anybit.errors import ModelError  # noqa: E402
from anybit.torch import Exported, export  # noqa: E402


def test_scales_are_computed_by_pytorch(tmp_path: Path) -> None:
    """What depends on parameters only is in the file with the bits that the module has."""
    torch.manual_seed(1)
    module = Weighted()
    found = export(module, numbers(4, 6))
    assert found.steps == 0
    graph = found.model.graph
    kinds = [node.op_type for node in graph]
    assert kinds == ["IntQuant", "Mul", "Gemm", "Add", "IntQuant"]
    parameter = module.quantizer.scale.detach()
    wanted = torch.nn.functional.softplus(parameter).clamp(min=0.01).exp()
    np.testing.assert_array_equal(
        bits(graph.initializers["quantizer.scale"].const_value.numpy()),
        bits((wanted / wanted.std()).numpy()),
    )


@pytest.mark.parametrize("opset", [18, 25])
@pytest.mark.parametrize("name", ["folded", "c_folded", "c_folded_1", "val_0", "int_quant", "x"])
def test_names_of_the_module_are_its_own(name: str, opset: int) -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("logarithm", torch.tensor(-2.0))
            self.register_buffer(name, torch.tensor(5.0))

        def forward(self, x: Any) -> Any:
            return ours.int_quant(x, self.logarithm.exp(), 0, 4) + getattr(self, name)

    found = export(Named(), numbers(4, 6), opset=opset)
    assert found.equal, str(found)


def test_weights_stay_behind_their_quantizer() -> None:
    graph = export(Weighted(), numbers(4, 6)).model.graph
    quantizer = next(node for node in graph if node.op_type == "IntQuant")
    assert quantizer.inputs[0].name == "layer.weight"
    assert quantizer.inputs[0].is_initializer()


def test_nothing_is_left_of_how_it_was_made(tmp_path: Path) -> None:
    """The exporter writes source lines with their paths into nodes."""
    export(Weighted(), numbers(4, 6), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert model.producer_name == "anybit"
    parts = [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output]
    parts += [*model.graph.value_info, *model.graph.initializer]
    assert not any(part.metadata_props or part.doc_string for part in parts)
    assert not model.functions
    text = (tmp_path / "model.onnx").read_bytes()
    for trace in (b"pkg.", b".py", b"forward", str(tmp_path).encode(), b"site-packages"):
        assert trace not in text


class Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0, lambda x: ours.int_quant(x, 0.25, 0, 4), lambda x: x - 1, (x,)
        )


def test_branches(tmp_path: Path) -> None:
    """Branches are graphs inside of a node; they are cleaned too."""
    path = tmp_path / "model.onnx"
    x = numbers(4, 6)
    assert export(Branches(), x, path).equal
    assert b"pkg." not in path.read_bytes()
    model = anybit.load(path)
    for given in (x.abs(), -x.abs()):
        (result,) = model.run(given.numpy()).values()
        np.testing.assert_array_equal(result, Branches()(given))


def test_free_batch() -> None:
    found = export(Weighted(), numbers(1, 6))
    graph = found.model.graph
    assert [str(value.shape) for value in (*graph.inputs, *graph.outputs)] == [
        "[batch,6]",
        "[batch,3]",
    ]
    fixed = export(Weighted(), numbers(1, 6), dynamic_batch=False)
    assert list(fixed.model.graph.inputs[0].shape) == [1, 6]
    assert list(fixed.model.graph.outputs[0].shape) == [1, 3]


def test_other_free_sizes() -> None:
    """As torch.export takes them, with the names that they have there."""
    length = torch.export.Dim("length")
    found = export(
        Call(lambda x, y: ours.int_quant(x, 0.5, 0, 4) + y),
        (numbers(2, 5), numbers(5)),
        dynamic_shapes={"x": {1: length}, "others": ({0: length},)},
        input_names=["left", "right"],
        output_names=["sum"],
    )
    inputs = {value.name: str(value.shape) for value in found.model.graph.inputs}
    assert inputs == {"left": "[2,length]", "right": "[length]"}
    result = anybit.load(found.model).run(
        {"left": np.ones((2, 9), np.float32), "right": np.ones(9, np.float32)}
    )
    assert result["sum"].shape == (2, 9)


def test_free_sizes_in_the_order_of_the_arguments() -> None:
    """torch.export takes both."""
    rows = torch.export.Dim("rows")
    found = export(Weighted(), numbers(2, 6), dynamic_shapes=({0: rows},))
    assert str(found.model.graph.inputs[0].shape) == "[rows,6]"


@pytest.mark.parametrize(
    ("shapes", "got"), [((None, None), "2 items"), ({"z": None}, "z"), ([], "0 items")]
)
def test_free_sizes_of_other_arguments(shapes: Any, got: str) -> None:
    with pytest.raises(ModelError, match=rf"of each of x; got {got}$"):
        export(Weighted(), numbers(2, 6), dynamic_shapes=shapes)


def test_keywords_structures_and_outputs_that_are_inputs() -> None:
    class Structured(torch.nn.Module):
        def forward(self, pair: Any, *, shift: Any, unused: Any = None) -> Any:
            total = pair["a"] + pair["b"]
            return {"total": total, "again": total, "a": pair["a"], "shifted": total + shift}

    x = numbers(3, 4)
    found = export(Structured(), ({"a": x, "b": 2 * x},), kwargs={"shift": 3 * x})
    assert found.equal
    outputs = [value.name for value in found.model.graph.outputs]
    assert outputs == ["total", "again", "a", "shifted"]
    names = [value.name for value in found.model.graph.inputs]
    results = anybit.load(found.model).run(
        dict(zip(names, (x.numpy(), 2 * x.numpy(), 3 * x.numpy()), strict=True))
    )
    assert [float(array[0, 0] / x[0, 0]) for array in results.values()] == [3, 3, 1, 6]


class Detection(NamedTuple):
    boxes: Any
    scores: Any


@pytest.mark.parametrize(
    ("give", "expected"),
    [
        (lambda x: {"logits": x + 1, "hidden": {"last": x + 2}}, ["logits", "hidden.last"]),
        (lambda x: {"logits": x + 1}, ["logits"]),
        (lambda x: {"x": x + 1, "y": x + 2}, ["x_1", "y"]),
        (lambda x: {"maps": [x + 1, x + 2]}, ["maps.0", "maps.1"]),
        (lambda x: ({"a.b": x + 1}, {"b": x + 3}, x + 2), ["0.a.b", "1.b", "output_2"]),
        (lambda x: {0: x + 1, 1: x + 2}, ["output_0", "output_1"]),
        (lambda x: {"": x + 1, "new\nline": x + 2}, ["output_0", "output_1"]),
        (lambda x: Detection(x + 1, x + 2), ["boxes", "scores"]),
        (lambda x: [x + 1], ["output"]),
        (lambda x: (x + 1, x + 2), ["output_0", "output_1"]),
    ],
)
def test_outputs_are_called_by_their_keys(give: Callable[[Any], Any], expected: list[str]) -> None:
    found = export(Call(give), numbers(2, 3))
    assert [value.name for value in found.model.graph.outputs] == expected
    assert found.equal


def test_the_module_stays_as_it_is() -> None:
    module = torch.nn.Sequential(Weighted(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    module[2].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    found = export(module, numbers(4, 6))
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    # The model is a copy: training goes on without it.
    with torch.no_grad():
        module[0].layer.weight.zero_()
    assert found.model.graph.initializers["0.layer.weight"].const_value.numpy().any()


def test_report() -> None:
    found = export(Weighted(), numbers(4, 6))
    assert isinstance(found, Exported)
    assert found.path is None
    assert [each.name for each in found.quantized] == ["IntQuant", "output"]
    text = str(found)
    assert "2 of them quantizers" in text
    assert "compared with the module" in text
    without = export(Weighted(), numbers(4, 6), verify=False)
    assert (without.difference, without.equal, without.steps) == (None, None, None)
    assert "compared" not in str(without)


def test_a_difference_is_told() -> None:
    """Sums of many numbers that float32 cannot hold; the report counts what differs."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4096, 64)
    found = export(module, torch.randn(16, 4096))
    assert found.equal is False
    (tensor,) = found.difference.different
    assert tensor.name == "output"
    assert 0 < tensor.largest < 1e-4
    assert f"output: {tensor.differing} of 1024 elements differ" in str(found)


@pytest.mark.parametrize("opset", [18, 21, 25])
def test_opset(opset: int) -> None:
    found = export(Weighted(), numbers(4, 6), opset=opset)
    assert found.model.graph.opset_imports == {"": opset, "qonnx.custom_op.general": 1}
    assert found.steps == 0


def test_large_tensors_lie_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anybit.onnx.files.writer._LARGEST_SINGLE_FILE", 1000)
    module = Call(lambda x: x)
    module.layer = torch.nn.Linear(64, 64)
    module.function = lambda x: module.layer(ours.int_quant(x, 0.25, 0, 4))
    path = tmp_path / "model.onnx"
    export(module, numbers(2, 64), path)
    assert {each.name for each in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
    (result,) = anybit.load(path).run(numbers(2, 64).numpy()).values()
    np.testing.assert_allclose(result, module(numbers(2, 64)).detach(), rtol=0, atol=1e-5)


def quantized_out(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    ours.int_quant(x, 0.5, 0, 4, out=result)
    return result


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


REFUSED: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, Any], str]] = {
    "two versions": (
        lambda: torch.nn.Sequential(
            Call(lambda x: ours.trunc_v1(x, 0.0625, 0, 9, 6)),
            Call(lambda x: ours.trunc(x, 0.0625, 0, 8, 0.25, 6)),
        ),
        {},
        "trunc_v1 and trunc, .*use trunc throughout",
    ),
    "state": (Counting, {}, "Counting changes its buffer 'calls' in eval mode.*self.training"),
    "out": (
        lambda: Call(quantized_out),
        {},
        "Call calls anybit.int_quant_out.*, which writes to a tensor.*without out=",
    ),
    "out in a branch": (
        lambda: Call(lambda x: torch.cond(x.sum() > 0, quantized_out, torch.clone, (x,))),
        {},
        "without out=",
    ),
    "random": (lambda: Call(torch.nn.functional.dropout), {}, "random.*training=self.training"),
    "branch": (
        lambda: Call(lambda x: x if x.sum() > 0 else -x),
        {},
        "Call cannot be captured.*torch.cond for branches on values",
    ),
    "fixed batch": (
        lambda: Call(lambda x: x.reshape(4, 6, 1)),
        {},
        "Constraints violated.*dynamic_batch=False",
    ),
    "unknown operation": (
        lambda: Call(lambda x: torch.linalg.svd(x)[1]),
        {},
        "Call cannot be translated.*_linalg_svd.*other operations",
    ),
    "names": (
        lambda: Call(torch.relu),
        {"output_names": ["y", "z"]},
        r"1 inputs and 1 outputs, got the names \['x', 'y', 'z'\]",
    ),
    "equal names": (
        lambda: Call(torch.relu),
        {"output_names": ["x"]},
        r"must differ, got \['x', 'x'\]",
    ),
    "opset": (lambda: Call(torch.relu), {"opset": 17}, "opset must be in 18 .. 25, got 17"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    """One line with the reason and the remedy, and no file."""
    make, options, pattern = REFUSED[what]
    with pytest.raises(anybit.ModelError, match=pattern) as caught:
        export(make(), numbers(4, 6), tmp_path / "model.onnx", **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_errors_of_the_module_are_its_own() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        export(torch.nn.Linear(5, 2), numbers(4, 6))
    with pytest.raises(TypeError, match="argument"):
        export(torch.nn.Linear(6, 2), (numbers(4, 6), numbers(4, 6)))


def test_no_file_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(anybit.ModelError, match="folder that exists"):
        export(Call(torch.relu), numbers(2, 3), tmp_path / "missing" / "model.onnx")


def test_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch's exporter prints its progress, and logs which optional packages it lacks."""
    export(Weighted(), numbers(4, 6))
    assert capfd.readouterr() == ("", "")
    handlers = [each for each in logging.getLogger("torch").handlers if each.filters]
    assert not handlers
