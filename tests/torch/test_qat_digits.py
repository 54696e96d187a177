# SPDX-License-Identifier: Apache-2.0
"""The story of examples/qat_digits: a short version trains, and its files give PyTorch's bits."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from places import ROOT

import anybit

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

FOLDER = ROOT / "examples" / "qat_digits"
PAGE = ROOT / "docs" / "qat_digits.md"
VARIANTS = ("float32", "int8", "fp8_e4m3", "int4", "fp4_e2m1", "ternary", "bipolar")
# Their sums have more digits than float32, so that the order of summation decides about bits.
ROUNDED = ("float32", "fp8_e4m3")


@pytest.fixture(scope="module")
def story() -> Iterator[ModuleType]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("qat_digits")
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def report(story: ModuleType) -> ModuleType:
    pytest.importorskip("matplotlib")
    return importlib.import_module("report")


@pytest.fixture(scope="module")
def start(story: ModuleType) -> Any:
    """Return a network trained in float for a few seconds."""
    return story.float_network(story.digits()[0], seed=0, epochs=8)


def variant_named(story: ModuleType, name: str) -> Any:
    return next(variant for variant in story.VARIANTS if variant.name == name)


def test_qat_digits_variants(story: ModuleType) -> None:
    assert tuple(variant.name for variant in story.VARIANTS) == VARIANTS


def test_qat_digits_learns_in_four_bits(story: ModuleType, start: Any) -> None:
    """Far from the accuracy of the whole training, and far from what an untrained one has."""
    training, test = story.digits()
    torch.manual_seed(0)
    untrained = story.Network().eval()
    assert story.accuracy(untrained, test) < 0.4
    assert story.accuracy(start, test) > 0.95
    network = story.train_variant(start, variant_named(story, "int4"), training, seed=0, epochs=5)
    assert story.accuracy(network, test) > 0.95


@pytest.mark.parametrize("name", VARIANTS)
def test_qat_digits_export_equals_module(
    name: str, story: ModuleType, start: Any, tmp_path: Path
) -> None:
    training, test = story.digits()
    network = story.train_variant(start, variant_named(story, name), training, seed=0, epochs=1)
    path = tmp_path / "model.onnx"
    exported = anybit.torch.export(
        network, test.images[:64], path, input_names=["x"], output_names=["y"]
    )
    assert len(exported.quantized) == {"float32": 0, "fp8_e4m3": 6}.get(name, 9)
    with torch.no_grad():
        expected = network(test.images).numpy()
    converted = tmp_path / "converted.onnx"
    anybit.convert(path, to="qdq").save(converted)
    for file in (path, converted):
        outputs = anybit.load(file).run(test.images.numpy())["y"]
        if name in ROUNDED:
            # An activation that rounding moves by one step of FP8 moves the outputs this far.
            np.testing.assert_allclose(outputs, expected, rtol=0, atol=0.1)
        else:
            assert exported.equal
            np.testing.assert_array_equal(outputs, expected)


def test_qat_digits_command_compares(
    story: ModuleType, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, test = story.digits()
    network = story.train_variant(start, variant_named(story, "int4"), training, seed=0, epochs=1)
    file = story.write(network, test.images, tmp_path, "int4")
    assert (file.equal, file.steps, file.tolerance) == (True, 0, 0)
    # 144 + 4608 + 1280 weights of half a byte, 58 scales of four, 58 biases of two, and more.
    assert 3016 + 58 * 6 < file.constants < 5000 < file.qdq < file.qonnx / 2
    with np.load(tmp_path / "int4.npz") as record:
        arrays = dict(record)
    arrays["y"][3, 4] += 0.5
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(SystemExit, match="1 of 2570 elements"):
        story.run_command(
            "run",
            tmp_path / "int4.onnx",
            "--input",
            tmp_path / "int4.npz",
            "--expect",
            tmp_path / "other.npz",
        )


def rows_of_the_page() -> dict[str, list[str]]:
    """Return the cells of the table in the page, by variant."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- results:begin -->")[2].partition("<!-- results:end -->")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[3:-1]
    ]
    return {name: cells for name, *cells in lines}


def test_qat_digits_page_shows_expected_accuracies() -> None:
    rows = rows_of_the_page()
    assert tuple(rows) == VARIANTS
    percent = {name: float(re.match(r"[\d.]+", cells[2])[0]) for name, cells in rows.items()}
    assert percent["int4"] > percent["float32"] - 1
    assert percent["bipolar"] < percent["ternary"] < percent["int4"]
    for name, cells in rows.items():
        assert (cells[4] == "equal") == (name not in ROUNDED)


def test_qat_digits_calibration_then_an_epoch(story: ModuleType, start: Any) -> None:
    """Check the stages, which are accurate in 3 bits."""
    calibration = importlib.import_module("calibration")
    training, test = story.digits()
    result = calibration.stages(start, "int3 narrow", "uint3", training, seed=0)
    assert all(story.accuracy(element, test) > 0.9 for element in result)
    scales = [item.linear.input_quantizer.scale.threshold.item() for item in result]
    weights = [entry.linear.weight for entry in result]
    assert len(set(scales)) == 3
    assert torch.equal(weights[0], start.linear.weight)
    assert not any(torch.equal(weight, start.linear.weight) for weight in weights[1:])


def test_qat_digits_page_shows_calibration() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- calibration:begin -->")[2]
    rows = [line.split("|") for line in table.partition("<!--")[0].splitlines()[3:]]
    values = [[float(cell.split()[0]) for cell in row[3:-1]] for row in rows]
    assert len(values) == 4
    for floats, calibrated, trained, both in values[1:]:
        assert calibrated < trained < both < floats


def test_qat_digits_plot_matches_table() -> None:
    picture = (ROOT / "docs" / "images" / "qat_digits.svg").read_text(encoding="utf-8")
    for name, cells in rows_of_the_page().items():
        assert picture.count(f">{name}<") == 2
        for size in cells[5:7]:
            assert f">{size}<" in picture


def test_qat_digits_table_and_plot_are_reproducible(
    story: ModuleType, report: ModuleType, tmp_path: Path
) -> None:
    file = story.File(False, 1.0, 0.1, 30000, 10000, 4000)
    outcomes = [
        story.Outcome(variant, seed, 0.9 + seed / 100, file if seed == 0 else None)
        for seed in (0, 1)
        for variant in story.VARIANTS
    ]
    lines = report.lines(outcomes)
    assert lines[0].cells[1:] == (
        "90.5 ± 0.7", "90.0-91.0", "within 0.1, 1 steps", "29.3", "9.8", "3.9",
    )  # fmt: skip
    assert report.table(lines).row_count == len(VARIANTS)
    pictures = [tmp_path / name for name in ("one.svg", "two.svg")]
    for path in pictures:
        report.draw(lines, path)
    first, second = (path.read_bytes() for path in pictures)
    assert first == second
    assert b"Matplotlib" not in first


def test_qat_digits_notebook_runs() -> None:
    """Run all cells, which have assertions; no outputs are stored."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(FOLDER / "qat_digits.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
    printed = "".join(
        output.text for cell in cells for output in cell.outputs if output.output_type == "stream"
    )
    assert "10 tensors compared with the module, all equal" in printed
    assert "all 2570 elements agree exactly" in re.sub(r"\x1b\[[\d;]*m", "", printed)
