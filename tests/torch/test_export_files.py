# SPDX-License-Identifier: Apache-2.0
"""Contents of exported files, reports, and errors."""

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
from anybit.torch import ExportResult, export  # noqa: E402


def test_export_folds_scales_with_pytorch(tmp_path: Path) -> None:
    """Compare constants in the file with those of the module, bit for bit."""
    torch.manual_seed(1)
    module = Weighted()
    result = export(module, numbers(4, 6))
    assert result.steps == 0
    graph = result.model.graph
    kinds = [node.op_type for node in graph]
    assert kinds == ["IntQuant", "Mul", "Gemm", "Add", "IntQuant"]
    parameter = module.quantizer.scale.detach()
    expected = torch.nn.functional.softplus(parameter).clamp(min=0.01).exp()
    np.testing.assert_array_equal(
        bits(graph.initializers["quantizer.scale"].const_value.numpy()),
        bits((expected / expected.std()).numpy()),
    )


@pytest.mark.parametrize("opset", [18, 25])
@pytest.mark.parametrize("name", ["folded", "c_folded", "c_folded_1", "val_0", "int_quant", "x"])
def test_export_keeps_names_of_the_module(name: str, opset: int) -> None:
    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("logarithm", torch.tensor(-2.0))
            self.register_buffer(name, torch.tensor(5.0))

        def forward(self, x: Any) -> Any:
            return ours.int_quant(x, self.logarithm.exp(), 0, 4) + getattr(self, name)

    result = export(Named(), numbers(4, 6), opset=opset)
    assert result.equal, str(result)


def test_export_keeps_quantizers_of_weights() -> None:
    graph = export(Weighted(), numbers(4, 6)).model.graph
    quantizer = next(node for node in graph if node.op_type == "IntQuant")
    assert quantizer.inputs[0].name == "layer.weight"
    assert quantizer.inputs[0].is_initializer()


def test_export_drops_metadata(tmp_path: Path) -> None:
    """Remove source lines and paths, which PyTorch's exporter writes into nodes."""
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


def test_export_of_branches(tmp_path: Path) -> None:
    """Branches are graphs inside of a node; they are cleaned too."""
    path = tmp_path / "model.onnx"
    x = numbers(4, 6)
    assert export(Branches(), x, path).equal
    assert b"pkg." not in path.read_bytes()
    model = anybit.load(path)
    for values in (x.abs(), -x.abs()):
        (result,) = model.run(values.numpy()).values()
        np.testing.assert_array_equal(result, Branches()(values))


def test_export_with_a_free_batch() -> None:
    result = export(Weighted(), numbers(1, 6))
    graph = result.model.graph
    assert [str(value.shape) for value in (*graph.inputs, *graph.outputs)] == [
        "[batch,6]",
        "[batch,3]",
    ]
    fixed = export(Weighted(), numbers(1, 6), dynamic_batch=False)
    assert list(fixed.model.graph.inputs[0].shape) == [1, 6]
    assert list(fixed.model.graph.outputs[0].shape) == [1, 3]


def test_export_with_other_free_sizes() -> None:
    """Accept the forms of torch.export, with their names."""
    length = torch.export.Dim("length")
    actual = export(
        Call(lambda x, y: ours.int_quant(x, 0.5, 0, 4) + y),
        (numbers(2, 5), numbers(5)),
        dynamic_shapes={"x": {1: length}, "others": ({0: length},)},
        input_names=["left", "right"],
        output_names=["sum"],
    )
    inputs = {value.name: str(value.shape) for value in actual.model.graph.inputs}
    assert inputs == {"left": "[2,length]", "right": "[length]"}
    result = anybit.load(actual.model).run(
        {"left": np.ones((2, 9), np.float32), "right": np.ones(9, np.float32)}
    )
    assert result["sum"].shape == (2, 9)


def test_export_with_free_sizes_in_order_of_arguments() -> None:
    """torch.export takes both."""
    rows = torch.export.Dim("rows")
    result = export(Weighted(), numbers(2, 6), dynamic_shapes=({0: rows},))
    assert str(result.model.graph.inputs[0].shape) == "[rows,6]"


@pytest.mark.parametrize(
    ("shapes", "got"), [((None, None), "2 items"), ({"z": None}, "z"), ([], "0 items")]
)
def test_export_refuses_free_sizes_of_other_arguments(shapes: Any, got: str) -> None:
    with pytest.raises(ModelError, match=rf"for each of x; got {got}$"):
        export(Weighted(), numbers(2, 6), dynamic_shapes=shapes)


def test_export_of_keywords_structures_and_passed_inputs() -> None:
    class Structured(torch.nn.Module):
        def forward(self, pair: Any, *, shift: Any, unused: Any = None) -> Any:
            total = pair["a"] + pair["b"]
            return {"total": total, "again": total, "a": pair["a"], "shifted": total + shift}

    x = numbers(3, 4)
    result = export(Structured(), ({"a": x, "b": 2 * x},), kwargs={"shift": 3 * x})
    assert result.equal
    outputs = [value.name for value in result.model.graph.outputs]
    assert outputs == ["total", "again", "a", "shifted"]
    names = [value.name for value in result.model.graph.inputs]
    results = anybit.load(result.model).run(
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
def test_export_names_outputs_by_keys(give: Callable[[Any], Any], expected: list[str]) -> None:
    result = export(Call(give), numbers(2, 3))
    assert [value.name for value in result.model.graph.outputs] == expected
    assert result.equal


def test_export_keeps_the_module() -> None:
    module = torch.nn.Sequential(Weighted(), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(3))
    module[2].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    result = export(module, numbers(4, 6))
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    # The model is a copy: training goes on without it.
    with torch.no_grad():
        module[0].layer.weight.zero_()
    assert result.model.graph.initializers["0.layer.weight"].const_value.numpy().any()


def test_export_report() -> None:
    result = export(Weighted(), numbers(4, 6))
    assert isinstance(result, ExportResult)
    assert result.path is None
    assert [item.name for item in result.quantized] == ["IntQuant", "output"]
    text = str(result)
    assert "2 of them quantizers" in text
    assert "compared with the module" in text
    without = export(Weighted(), numbers(4, 6), verify=False)
    assert (without.difference, without.equal, without.steps) == (None, None, None)
    assert "compared" not in str(without)


def test_export_reports_differences() -> None:
    """Sums of many numbers that float32 cannot hold; the report counts what differs."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4096, 64)
    result = export(module, torch.randn(16, 4096))
    assert result.equal is False
    (tensor,) = result.difference.different
    assert tensor.name == "output"
    assert 0 < tensor.largest < 1e-4
    assert f"output: {tensor.differing} of 1024 elements differ" in str(result)


@pytest.mark.parametrize("opset", [18, 21, 25])
def test_export_with_an_opset(opset: int) -> None:
    result = export(Weighted(), numbers(4, 6), opset=opset)
    assert result.model.graph.opset_imports == {"": opset, "qonnx.custom_op.general": 1}
    assert result.steps == 0


def test_export_writes_large_tensors_to_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anybit.onnx.files.writer._LARGEST_SINGLE_FILE", 1000)
    module = Call(lambda x: x)
    module.layer = torch.nn.Linear(64, 64)
    module.function = lambda x: module.layer(ours.int_quant(x, 0.25, 0, 4))
    path = tmp_path / "model.onnx"
    export(module, numbers(2, 64), path)
    assert {item.name for item in tmp_path.iterdir()} == {"model.onnx", "model.onnx.data"}
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
        "Call calls anybit.int_quant_out.*, which writes to an argument.*without out=",
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


@pytest.mark.parametrize("subject", REFUSED)
def test_export_refuses(subject: str, tmp_path: Path) -> None:
    """Raise an error of one line with reason and remedy, and write no file."""
    make, options, pattern = REFUSED[subject]
    with pytest.raises(anybit.ModelError, match=pattern) as caught:
        export(make(), numbers(4, 6), tmp_path / "model.onnx", **options)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_export_passes_errors_of_the_module() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        export(torch.nn.Linear(5, 2), numbers(4, 6))
    with pytest.raises(TypeError, match="argument"):
        export(torch.nn.Linear(6, 2), (numbers(4, 6), numbers(4, 6)))


def test_export_to_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(anybit.ModelError, match="folder that exists"):
        export(Call(torch.relu), numbers(2, 3), tmp_path / "missing" / "model.onnx")


def test_export_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """PyTorch's exporter prints its progress, and logs which optional packages it lacks."""
    export(Weighted(), numbers(4, 6))
    assert capfd.readouterr() == ("", "")
    handlers = [handler for handler in logging.getLogger("torch").handlers if handler.filters]
    assert not handlers
