# SPDX-License-Identifier: Apache-2.0
"""`anybit diff`: the table, the page, the figures for programs, and what goes wrong."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
import pytest
from page_tags import Tags
from rich.console import Console
from shell import Shell, X
from small_models import array, model, node, quantized_input

from anybit.comparison import Difference, diff, render_page
from anybit.comparison.report.pictures import (
    assign_levels,
    blockwise,
    draw_heat_map,
    draw_histogram,
    flatten_to_matrix,
)

TIES = np.array([[0.25, 0.5, -0.25, 0.75]], np.float32)


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    """Beside what a Shell brings: up.onnx, which rounds ties up, and ties.npy."""
    made = Shell(capfd, monkeypatch, tmp_path)
    onnx.save(quantized_input(rounding_mode="HALF_UP"), "up.onnx")
    np.save("ties.npy", TIES)
    return made


def test_diff_of_equal_models_exits_with_0(shell: Shell) -> None:
    code, out, err = shell("diff", "model.onnx", "--with", "anybit,reference")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "A  model.onnx (anybit)",
        "B  model.onnx (reference)",
        "Note: the inputs are random numbers (seed 0).",
        "1 tensor compared: 1 equal, 0 different.",
    ]
    _, out, _ = shell("diff", "model.onnx", "--with", "anybit,reference", "--all")
    assert re.search(r"^ y +IntQuant +the_Quant +4 +0 +0 +0 +0 +itself", out, re.MULTILINE)


def test_diff_of_different_models_exits_with_1(shell: Shell) -> None:
    code, out, err = shell("diff", "model.onnx", "up.onnx", "--input", "ties.npy")
    assert (code, err) == (1, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[-6:] == [
        "The first tensor that differs is y, computed by IntQuant the_Quant. "
        "Inputs equal: x, scale, zeropt, bitwidth.",
        "  [0, 0]: A 0, B 0.5, 1 step apart",
        "  [0, 2]: A -0, B -0.5, 1 step apart",
        "  Hint: rounding_mode is ROUND in A and HALF_UP in B.",
        "  Hint: all 2 elements that differ: half-way between two steps; "
        "the two sides round ties differently.",
        "4 tensors compared: 3 equal, 1 different (1 with equal inputs, marked *).",
    ]
    allowed = ["--input", "ties.npy", "--steps", "1"]
    code, out, _ = shell("diff", "model.onnx", "up.onnx", *allowed)
    assert code == 0
    assert "Note: differences up to 1 step count as equal." in out
    assert "3 equal, 1 within the tolerance, 0 different." in out


def test_diff_prints_whole_names_to_pipes(shell: Shell) -> None:
    long = "a_name_of_many_words_" * 8
    onnx.save(model([node("Relu", "x", long, domain=""), node("Neg", long, domain="")]), "l.onnx")
    _, out, _ = shell("diff", "l.onnx", "--with", "anybit,onnxruntime", "--all")
    assert any(long in line for line in out.splitlines())


def test_diff_escapes_names(shell: Shell) -> None:
    name = "\x1b[31m[bold]red"
    onnx.save(model([node("Relu", "x", name, domain=""), node("Neg", name, domain="")]), "n.onnx")
    _, out, _ = shell("diff", "n.onnx", "--with", "anybit,onnxruntime", "--all")
    assert "\\x1b[31m[bold]red" in out
    assert "\x1b" not in out


def test_diff_compares_recorded_tensors(shell: Shell) -> None:
    code, out, _ = shell("diff", "model.onnx", "both.npz")
    assert code == 0
    assert "B  both.npz" in out
    np.savez("wrong.npz", y=np.zeros((1, 4), np.float32))
    code, out, _ = shell("diff", "model.onnx", "wrong.npz", "--input", "x.npy")
    assert code == 1
    assert "[0, 3]: A 3.5, B 0, 7 steps apart" in out


def test_diff_prints_json(shell: Shell) -> None:
    np.savez("nan.npz", x=X, y=np.array([[0.5, -1, 1, np.nan]], np.float32))
    code, out, _ = shell("diff", "model.onnx", "nan.npz", "--json")
    document = json.loads(out)
    assert code == 1
    assert (document["equal"], document["first"], document["worst"]) == (False, "y", "y")
    assert document["counts"] == {"compared": 1, "equal": 0, "tolerated": 0, "different": 1}
    (tensor,) = document["tensors"]
    assert tensor["differing"] == tensor["nans"] == 1
    assert (tensor["largest"], tensor["ulps"], tensor["outcome"]) == (None, None, "different")
    assert tensor["samples"] == [{"index": [0, 3], "a": 3.5, "b": None, "steps": None}]
    assert shell("diff", "model.onnx", "nan.npz", "--report", "out.json")[1] != ""
    assert json.loads(Path("out.json").read_text()) == document
    assert not list(Path().glob("*.part"))


def test_diff_writes_no_unrequested_report(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the JSON document on request only: for a long network it takes megabytes."""
    documents = []
    record = Difference.to_json
    monkeypatch.setattr(
        Difference, "to_json", lambda difference: documents.append(1) or record(difference)
    )
    shell("diff", "model.onnx", "up.onnx")
    assert not documents
    shell("diff", "model.onnx", "up.onnx", "--json")
    assert documents


def test_diff_writes_html(shell: Shell) -> None:
    code, _, _ = shell("diff", "model.onnx", "up.onnx", "--input", "ties.npy", "--report", "p.html")
    assert code == 1
    page = Path("p.html").read_text(encoding="utf-8")
    assert Tags(page).names.count("svg") == 2
    assert "prefers-color-scheme: dark" in page
    assert "rounding_mode is ROUND in A and HALF_UP in B" in page
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(drawing)


@pytest.mark.parametrize(("name", "start"), [("p.HTML", "<!DOCTYPE"), ("p", "{"), ("p.JSON", "{")])
def test_report_suffix_selects_the_format(shell: Shell, name: str, start: str) -> None:
    assert shell("diff", "model.onnx", "up.onnx", "--report", name)[0] == 0
    assert Path(name).read_text(encoding="utf-8").lower().startswith(start.lower())


def evil(mode: str) -> onnx.ModelProto:
    """Return a model with HTML in its names."""
    name = "<script>alert('&')</script>"
    made = quantized_input(rounding_mode=mode)
    made.graph.node[0].name = made.graph.node[0].output[0] = name
    made.graph.output[0].name = name
    return made


def test_diff_page_escapes_names() -> None:
    difference = diff(evil("ROUND"), evil("HALF_UP"), TIES)
    text = render_page(difference)
    Tags(text)
    assert "&lt;script&gt;alert(" in text


def test_diff_page_of_equal_models() -> None:
    text = render_page(diff(quantized_input(), None, TIES))
    assert "<h1>No differences</h1>" in text
    assert "svg" not in Tags(text).names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.onnx", "up.onnx", "--with", "a,b,c"], "--with must name one runner or two"),
        (["model.onnx", "both.npz", "--with", "anybit,qonnx"], "--with must name one runner here"),
        (["model.onnx", "up.onnx", "--with", "tensorrt"], "--with must be one of anybit"),
        (["model.onnx", "missing.onnx"], "missing.onnx: no such file"),
        (["model.onnx", "missing.npz"], "missing.npz: no such file"),
        (["model.onnx", "x.npy"], "x.npy is not an ONNX model"),
        (["model.onnx", "up.onnx", "--input", "z=x.npy"], "z is not an input; inputs: x"),
        (["model.onnx", "up.onnx", "--report", "no/p.html"], "--report must be a file in a folder"),
        (
            ["model.onnx", "up.onnx", "--report", "p.txt"],
            "HTML to FILE.html and JSON to FILE.json",
        ),
        (["model.onnx", "up.onnx", "--steps", "nan"], "steps"),
        (["model.onnx", "up.onnx", "--atol", "-1"], "atol"),
    ],
)
def test_diff_rejects_bad_input(shell: Shell, arguments: list[str], message: str) -> None:
    assert message in shell.fails("diff", *arguments)


def narrow(shell: Shell, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """Return the lines of `anybit diff` on a terminal of 80 columns."""
    monkeypatch.setattr(
        "anybit.cli.diff.get_stdout",
        lambda: Console(width=80, highlight=False, force_terminal=False),
    )
    return shell("diff", *arguments)[1].splitlines()


def test_diff_keeps_the_star_next_to_its_name(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = narrow(shell, monkeypatch, "model.onnx", "up.onnx", "--input", "ties.npy")
    assert max(map(len, lines)) <= 80
    assert any(re.match(r" \*  y ", line) for line in lines)


def test_diff_shortens_names_on_narrow_terminals(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are left out before names are cut into single characters."""
    long = "the_sum_of_the_layer"
    for name, factor in (("a", 1.0), ("b", 1.0 + 2**-20)):
        nodes = [
            node("Mul", "x f", long, domain=""),
            node("BatchNormalization", f"{long} one zero zero one", "y", domain="", name="n"),
        ]
        one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
        onnx.save(model(nodes, {"f": factor, "one": one, "zero": zero}), f"{name}.onnx")
    lines = narrow(shell, monkeypatch, "a.onnx", "b.onnx")
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" *  f ") for line in lines)
    assert any(line.startswith("    the_sum_of_the") for line in lines)


def test_diff_wraps_long_names_in_few_lines(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "first/" + "a_block/" * 20 + "last"
    for name, factor in (("a", 1.0), ("b", 2.0)):
        nodes = [node("Mul", "x f", long, domain=""), node("Neg", long, "y", domain="", name="n")]
        onnx.save(model(nodes, {"f": factor}), f"{name}.onnx")
    lines = narrow(shell, monkeypatch, "a.onnx", "b.onnx")
    table = lines[
        : next(i for i, line in enumerate(lines) if line.startswith("Columns omitted to fit"))
    ]
    assert max(map(len, lines)) <= 80
    assert len(table) < 14
    assert "the middle of long names" in lines[len(table)]
    names = "".join(line[4:18].rstrip() for line in table[3:])
    assert "first/a_block/" in names
    assert "/last" in names


def test_diff_runs_one_model_under_two_runners(shell: Shell) -> None:
    for options, runner in (((), "onnxruntime"), (("--with", "reference"), "reference")):
        code, out, _ = shell("diff", "model.onnx", *options)
        assert code == 0
        assert out.splitlines()[:2] == ["A  model.onnx (anybit)", f"B  model.onnx ({runner})"]


def chain(factor: float, count: int = 30) -> onnx.ModelProto:
    """Return a chain of `count` Mul nodes with tensors t0, t1, ..."""
    nodes = []
    for i in range(count):
        inputs = f"t{i - 1} {'f' if i == 3 else 'one'}" if i else "x one"
        nodes.append(node("Mul", inputs, f"t{i}", domain="", name=f"n{i}"))
    return model([*nodes, node("Neg", f"t{count - 1}", domain="")], {"one": 1.0, "f": factor})


def test_diff_ranks_the_largest_contributions_first(shell: Shell) -> None:
    onnx.save(chain(1.0), "a.onnx")
    onnx.save(chain(1.5), "b.onnx")
    _, out, _ = shell("diff", "a.onnx", "b.onnx")
    table = out[: out.index("more tensors")]
    names = re.findall(r"^ \*? +(\w+) +(?:Mul|constant)", table, re.M)
    assert (names[0], len(names)) == ("f", 20)
    assert "9 more tensors differ, with less added noise; --all lists them." in out
    _, out, _ = shell("diff", "a.onnx", "b.onnx", "--all")
    assert "more tensors" not in out
    names = re.findall(r"^ \*? +(t\d+) ", out, re.M)
    assert names == [f"t{i}" for i in range(30)]


def test_unknown_runner_is_reported_without_sizes(shell: Shell) -> None:
    onnx.save(model([node("Relu", "x", domain="")], inputs={"x": ["n", 4]}), "free.onnx")
    error = shell.fails("diff", "free.onnx", "--with", "onnx")
    assert "--with must be one of anybit" in error
    assert "assumed" not in error


def test_diff_takes_shapes_of_random_inputs(shell: Shell) -> None:
    onnx.save(model([node("Relu", "x", domain="")], inputs={"x": ["n", 4]}), "free.onnx")
    _, out, _ = shell("diff", "free.onnx", "--all")
    assert "dynamic sizes are assumed to be 1: x has [n, 4], run with [1, 4]" in out
    _, out, _ = shell("diff", "free.onnx", "--all", "--shape", "x=5,4")
    assert re.search(r" y +Relu +the_Relu +20 ", out)
    assert "assumed" not in out


# Pictures


def difference(y: np.ndarray) -> Difference:
    """Compare a model that copies its input, zeros, with a recorded output y."""
    proto = model([node("Identity", "x", domain="")], inputs={"x": list(y.shape)})
    return diff(proto, {"x": np.zeros(y.shape, np.float32), "y": y})


def test_histogram_counts_whole_steps() -> None:
    differences = diff(quantized_input(), {"x": TIES, "y": array([[0, 1, -1, np.nan]])})
    figure = draw_histogram(differences["y"])
    words = "2 elements with a difference, B minus A, steps; 1 more where a number meets"
    assert figure.title.startswith(words)
    titles = re.findall(r"<title>(\S+: \d+)</title></rect>", figure.chart)
    assert titles == ["-2: 1", "-1: 0", "0: 0", "1: 1", "2: 0"]


def test_histogram_bins_small_differences() -> None:
    y = np.array([[1e-7, -1e-7, 5e-8, 0]], np.float32)
    chart = draw_histogram(difference(y)["y"]).chart
    counts = [int(text) for text in re.findall(r": (\d+)</title></rect>", chart)]
    assert sum(counts) == 3
    assert counts[0] == counts[-1] == 1


@pytest.mark.parametrize(
    ("shape", "down", "across"),
    [
        ((), "", ""),
        ((5,), "", "axis 0 (5)"),
        ((2, 3), "axis 0 (2)", "axis 1 (3)"),
        ((1, 4, 6), "axis 1 (4)", "axis 2 (6)"),
        ((1, 8, 4, 5), "axis 1 (8)", "axes 2, 3 (4 x 5)"),
        ((2, 8, 4, 5, 1), "axes 0, 1 (2 x 8)", "axes 2, 3 (4 x 5)"),
        ((64, 32, 1, 1), "axis 0 (64)", "axis 1 (32)"),
    ],
)
def test_rectangle_flattens_axes_and_names_them(
    shape: tuple[int, ...], down: str, across: str
) -> None:
    y = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    view = flatten_to_matrix(y)
    assert (view.down, view.across) == (down, across)
    assert view.grid.ravel().tolist() == y.ravel().tolist()
    if y.size > 1:
        ET.fromstring(draw_heat_map(difference(y)["y"]).chart)


def test_blockwise_keeps_the_largest_value() -> None:
    grid = np.zeros((300, 1000))
    grid[299, 999] = 7
    cells, block = blockwise(grid, (64, 128))
    assert cells.shape == (60, 125)
    assert block == (5, 8)
    assert cells[-1, -1] == cells.max() == 7


def test_graded_levels_double_up_to_infinity() -> None:
    levels, limits = assign_levels(np.array([[0, 1, 2, 4, 8, 15, 16, np.inf]]))
    assert limits.tolist() == [1, 2, 4, 8, 16]
    assert levels.tolist() == [[0, 1, 2, 3, 4, 5, 5, 5]]
    assert assign_levels(np.array([[0.0, np.inf]]))[0].tolist() == [[0, 5]]


def test_heat_map_names_its_axes() -> None:
    y = np.zeros((2, 8), np.float32)
    y[1, 3] = 1
    figure = draw_heat_map(difference(y)["y"])
    assert figure.labels == ["\u2193 axis 0 (2)", "axis 1 (8) \u2192"]
    assert 'class="level5" d="M3 1h1v1h-1z"' in figure.chart


def test_diff_page_highlights_rows_that_differ() -> None:
    differences = diff(quantized_input(), quantized_input(rounding_mode="HALF_UP"), TIES)
    text = render_page(differences)
    assert text.count('<tr class="different">') == len(differences.different) == 1
    assert text.count('<tr class="equal">') == 3
    assert "tr.different td { background" in text
