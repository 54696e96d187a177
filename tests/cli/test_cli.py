# SPDX-License-Identifier: Apache-2.0
"""Tests of `anybit run` and of features common to all commands."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from places import every_model, needs_models, needs_pipes
from rich.console import Console
from shell import Shell, Y
from small_models import model, node, quantized_input

import anybit
from anybit.cli import _console


@pytest.mark.parametrize("file_argument", ["x.npy", "both.npz", "x=x.npy"])
def test_run_compares_and_writes(shell: Shell, file_argument: str) -> None:
    arguments = ["--input", file_argument, "--expect", "both.npz", "--output", "out.npz"]
    code, out, err = shell("run", "model.onnx", *arguments)
    assert (code, err) == (0, "")
    assert "as expected: all 4 elements agree exactly" in out
    with np.load("out.npz") as written:
        assert written.files == ["y"]
        np.testing.assert_array_equal(written["y"], Y, strict=True)
    assert not list(Path().glob("*.part"))


def test_run_uses_random_inputs_with_a_fixed_seed(shell: Shell) -> None:
    code, out, err = shell("run", "model.onnx", "--repeat", "3", "--output", "a.npz")
    assert (code, err) == (0, "")
    assert "random numbers (seed 0)" in out
    assert "3 runs, fastest" in out
    shell("run", "model.onnx", "--output", "b.npz")
    assert Path("a.npz").read_bytes()[-200:] == Path("b.npz").read_bytes()[-200:]


def classifier(rows: int | str = 1) -> onnx.ModelProto:
    return model([node("Relu", "x", domain="")], inputs={"x": [rows, 4]}, outputs=["y"])


def test_run_prints_classes_and_accuracy(shell: Shell) -> None:
    onnx.save(classifier(), "c.onnx")
    x = np.eye(4, dtype=np.float32)[[2, 0, 3] * 5]
    np.save("x15.npy", x)
    command = ["run", "c.onnx", "--input", "x15.npy"]
    assert "arg max of y: 2 0 3 2 0 3 2 0 3 2 0 3 ...\n" in shell(*command)[1]
    assert f"arg max of y: {' '.join(['2 0 3'] * 5)}\n" in shell(*command, "--top1")[1]
    Path("names.txt").write_text("ant\nbee\ncat\nd\x1bog\n")
    out = shell(*command, "--labels", "names.txt")[1]
    assert "arg max of y: cat, ant, d\\x1bog, cat" in out
    right = np.array([2, 0, 3] * 5)
    right[:3] = 1
    np.save("right.npy", right)
    assert "y: 12 of 15 rows correct, 80.00 %" in shell(*command, "--labels", "right.npy")[1]
    np.save("few.npy", right[:4])
    np.save("floats.npy", right / 2)
    Path("three.txt").write_text("a\nb\nc\n")
    for labels, message in (
        ("few.npy", "--labels has 4 labels, output y has 15 rows; give one label per row"),
        ("floats.npy", "--labels must hold one array of integers"),
        ("three.txt", "--labels has 3 names, output y 4 classes; give one name per class"),
        ("none.txt", "none.txt: no such file"),
    ):
        assert message in shell.fails(*command, "--labels", labels, "--output", "o.npz")
        assert not Path("o.npz").exists()
    onnx.save(model([node("Neg", "x", domain="")], inputs={"x": [4]}), "flat.onnx")
    assert "no output has rows of classes" in shell.fails("run", "flat.onnx", "--top1")


def test_run_takes_shapes_of_random_inputs(shell: Shell) -> None:
    nodes = [node("Reshape", "x rows", domain="")]
    onnx.save(model(nodes, {"rows": np.array([-1, 8])}, inputs={"x": ["n", 4]}), "r.onnx")
    error = shell.fails("run", "r.onnx")
    assert "the model cannot be run" in error
    assert error.endswith(
        "dynamic sizes are assumed to be 1: x has [n, 4], run with [1, 4]; give real ones with "
        "--shape or --input"
    )
    assert "x has [n, 4]" in shell.fails("diff", "r.onnx")
    code, out, _ = shell("run", "r.onnx", "--shape", "x=6,4")
    assert code == 0
    assert re.search(r"output +y +float32 +\[3, 8\]", out)
    assert "The inputs are random numbers (seed 0); --input gives others." in out
    onnx.save(classifier("n"), "c.onnx")
    assert "assumed to be 1: x has [n, 4], run with [1, 4]; --input" in shell("run", "c.onnx")[1]
    for shape, message in (
        ("x=6", "'x' is declared with shape [n, 4], which [6] does not fit"),
        ("x=0,4", "--shape x: sizes must be from 1 to 2147483647, got 0"),
        ("x=1,4294967296", "sizes must be from 1 to 2147483647, got 4294967296"),
        (f"x={'9' * 5000}", "sizes must be from 1 to 2147483647, got a number of 5000 digits"),
        ("x=2147483647,4", "it has 8589934588 elements, the limit is 2147483648"),
        ("6,4", "--shape must be NAME=N,N,... such as x=1,3,320,320, got '6,4'"),
        ("x=6,-4", "--shape must be NAME=N,N,..."),
        ("z=6,4", "z is not an input; inputs: x"),
    ):
        assert message in shell.fails("run", "r.onnx", "--shape", shape)
    options = ["--shape", "x=6,4", "--input", "x.npy"]
    assert "--shape is for random inputs" in shell.fails("run", "r.onnx", *options)


def test_json_and_report_hold_the_same_document(shell: Shell) -> None:
    """`--json` prints one document and nothing else, `--report FILE` writes the same."""
    commands = {
        "check": ["model.onnx"],
        "convert": ["model.onnx", "--to", "qdq", "-o", "out.onnx"],
        "diff": ["model.onnx"],
    }
    for command, arguments in commands.items():
        code, out, err = shell(command, *arguments, "--json", "--report", "r.json")
        assert (code, err) == (0, ""), command
        assert json.loads(out) == json.loads(Path("r.json").read_text()), command
        _, words, _ = shell(command, *arguments, "--report", "r.json")
        assert words.strip()
        assert words != out
        assert "--report must be a file" in shell.fails(
            command, *arguments, "--report", "no/r.json"
        )
        if command != "diff":
            for name in ("r.html", "r.txt"):
                assert shell.fails(command, *arguments, "--report", name) == (
                    f"{name}: --report writes JSON only; use FILE.json"
                )


def test_missing_file_is_reported_alike_by_all_commands(shell: Shell) -> None:
    for arguments, path in (
        (["run", "none.onnx"], "none.onnx"),
        (["inspect", "none.onnx"], "none.onnx"),
        (["check", "none.onnx"], "none.onnx"),
        (["clean", "none.onnx", "-o", "out.onnx"], "none.onnx"),
        (["convert", "none.onnx", "--to", "qdq", "-o", "out.onnx"], "none.onnx"),
        (["diff", "none.onnx"], "none.onnx"),
        (["diff", "model.onnx", "none.npz"], "none.npz"),
        (["run", "model.onnx", "--input", "none.npy"], "none.npy"),
        (["run", "model.onnx", "--labels", "none.txt"], "none.txt"),
    ):
        assert shell.fails(*arguments) == f"{path}: no such file", arguments


def test_run_reports_differences_from_expected_outputs(shell: Shell) -> None:
    wrong = Y.copy()
    wrong[0, 2:] += [0.25, -2]
    np.savez("wrong.npz", y=wrong)
    message = shell.fails("run", "model.onnx", "--input", "x.npy", "--expect", "wrong.npz", code=1)
    assert message == (
        "output y differs in 2 of 4 elements, most by 2 at [0, 3]: got 3.5, expected 1.5 "
        "(--atol allows a difference)"
    )
    near = ["--input", "x.npy", "--expect", "wrong.npz", "--atol", "2"]
    code, out, _ = shell("run", "model.onnx", *near)
    assert code == 0
    assert "within 2" in out


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"y": Y[0]}, "has shape [1, 4], expected [4]"),
        ({"y": np.full((1, 4), "a")}, "expected <U1"),
        ({"y": Y * np.nan}, "differs in 4 of 4 elements, most by inf"),
    ],
)
def test_run_reports_shapes_dtypes_and_nan_that_differ(
    shell: Shell, expected: dict[str, np.ndarray], message: str
) -> None:
    np.savez("other.npz", **expected)
    arguments = ["--input", "x.npy", "--expect", "other.npz"]
    error = shell.fails("run", "model.onnx", *arguments, code=1)
    assert message in error
    assert ("--atol" in error) == message.startswith("differs")


def test_run_treats_nan_and_signed_zeros_as_equal(shell: Shell) -> None:
    np.savez("x.npz", x=np.array([[np.nan, 0, -0.1, 0]], np.float32))
    np.savez("y.npz", y=np.array([[np.nan, 0, 0, 0]], np.float32))
    assert shell("run", "model.onnx", "--input", "x.npz", "--expect", "y.npz")[0] == 0


def two_inputs() -> onnx.ModelProto:
    nodes = [node("Add", "a b", "/sum", domain=""), node("Sub", "a b", "file", domain="")]
    return model(nodes, inputs={"a": [1, 2], "b": ["n", 2]}, outputs=["/sum", "file"])


def test_run_takes_several_inputs_and_odd_output_names(shell: Shell) -> None:
    onnx.save(two_inputs(), "two.onnx")
    one = np.ones((1, 2), np.float32)
    np.save("one.npy", one)
    np.savez("ab.npz", a=one, b=2 * one, y=one)
    code, _, err = shell("run", "two.onnx", "--input", "a=one.npy", "--input", "b=one.npy")
    assert (code, err) == (0, "")
    assert shell("run", "two.onnx", "--input", "ab.npz", "--output", "out.npz")[0] == 0
    with np.load("out.npz") as written:
        assert {name: written[name].tolist() for name in written.files} == {
            "/sum": [[3, 3]],
            "file": [[-1, -1]],
        }
    assert shell("run", "two.onnx", "--input", "ab.npz", "--expect", "out.npz")[0] == 0
    for arguments, message in (
        (["--input", "a=one.npy"], "no --input gives b"),
        (["--input", "one.npy"], "one array without a name; the model's inputs are a, b"),
        (["--input", "ab.npz", "--input", "a=one.npy"], "a is given twice"),
        (["--input", "c=one.npy"], "c is not an input; inputs: a, b"),
        (["--input", "a=ab.npz"], "a holds 3 arrays"),
        (["--input", "ab.npz", "--expect", "ab.npz"], "but not output /sum"),
    ):
        assert message in shell.fails("run", "two.onnx", *arguments)


@needs_models
@every_model
def test_real_models(shell: Shell, path: Path) -> None:
    arrays = str(path.with_suffix(".npz"))
    code, out, err = shell(
        "run", str(path), "--input", arrays, "--expect", arrays, "--atol", "5e-6"
    )
    assert (code, err) == (0, ""), out
    code, out, err = shell("inspect", str(path))
    assert (code, err) == (0, "")
    assert "No quantizers" not in out


def program(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys; from anybit.cli import main; sys.argv[0] = 'anybit'; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_exit_is_silent_with_pytorch_and_triton(tmp_path: Path) -> None:
    """Triton counts its own parts as leaked where Python does not look through them."""
    pytest.importorskip("triton._C.libtriton", exc_type=ImportError)
    script = "import torch, triton._C.libtriton; from anybit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_program_runs_in_a_process_of_its_own(shell: Shell, tmp_path: Path) -> None:
    done = program("run", "model.onnx", "--input", "both.npz", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = program("inspect", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: Missing argument 'model' (see anybit inspect --help)\n"


@pytest.mark.parametrize("tolerance", ["nan", "-1"])
def test_run_rejects_invalid_tolerance(shell: Shell, tolerance: str) -> None:
    arguments = ["model.onnx", "--input", "x.npy", "--expect", "both.npz", "--atol", tolerance]
    assert "atol" in shell.fails("run", *arguments)


def test_run_checks_expected_names_first(shell: Shell) -> None:
    np.savez("other.npz", a=Y, b=Y)
    arguments = ["model.onnx", "--input", "x.npy", "--expect", "other.npz", "--output", "out.npz"]
    assert "a, b" in shell.fails("run", *arguments)
    assert not Path("out.npz").exists()


def test_inspect_refuses_text_as_a_scale(shell: Shell) -> None:
    onnx.save(quantized_input(scale=np.array(["a"], object)), "text.onnx")
    assert "scale" in shell.fails("inspect", "text.onnx")
    assert "scale" in shell.fails("run", "text.onnx", "--input", "x.npy")


@needs_pipes
def test_pipes_are_written_to_and_not_replaced(shell: Shell) -> None:
    """Write to a pipe, as a stand-in for devices such as /dev/null."""
    onnx.save(quantized_input(), "m.onnx")
    os.mkfifo("pipe")
    with open(os.open("pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        for arguments, beginning in (
            (("convert", "m.onnx", "--to", "qdq", "-o", "out.onnx", "--report", "pipe"), b"{"),
            (("run", "m.onnx", "--output", "pipe.npz"), b"PK"),
            (("clean", "m.onnx", "-o", "pipe", "--target", "finn"), b"\x08"),
        ):
            if "pipe.npz" in arguments:
                os.rename("pipe", "pipe.npz")
            code, _, err = shell(*arguments)
            assert code == 0, err
            assert reader.read().startswith(beginning)
            if "pipe.npz" in arguments:
                os.rename("pipe.npz", "pipe")
    assert Path("pipe").is_fifo()


def test_control_characters_in_names_are_escaped(shell: Shell) -> None:
    name = "\x1b[31m[bold]red"
    nodes = [
        node("Quant", "x scale zeropt bitwidth", "q", name=name),
        node("Relu", "q", name, domain=""),
    ]
    constants = {"scale": 0.5, "zeropt": 0, "bitwidth": 4}
    onnx.save(model(nodes, constants, outputs=[name]), "n.onnx")
    for arguments in (
        ["inspect", "--layers"],
        ["run"],
        ["convert", "--to", "qdq", "-o", "out.onnx"],
    ):
        _, out, err = shell(*arguments, "n.onnx")
        assert "\x1b" not in out + err, arguments
    np.savez("other.npz", a=Y, b=Y)
    error = shell.fails("run", "n.onnx", "--expect", "other.npz")
    assert "output \\x1b[31m[bold]red" in error


def test_help_lists_common_options_before_rare_ones(shell: Shell) -> None:
    _, out, _ = shell("quantize", "--help")
    common, rare = out.split("Single layers and mixed precision")
    assert "--integer-only" in common
    assert "--cluster" in rare


def test_help_shows_no_value_type_for_flags(shell: Shell) -> None:
    """Versions of typer differ in that; what has a value is named in words that fit a line."""
    _, out, _ = shell("--help")
    commands = re.findall(r"^│ (\w+) ", out, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        _, out, _ = shell(command, "--help")
        assert "--help" in out
        assert not re.findall(r"--[\w-]+ .*<(?:bool|str|int|float|path)", out), command


def test_version_option_prints_the_version(shell: Shell) -> None:
    assert shell("--version") == (0, f"anybit {anybit.__version__}\n", "")


def test_progress_is_shown_only_for_slow_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show progress on a terminal only, and only after a delay."""
    seen = io.StringIO()
    terminal = Console(file=seen, force_terminal=True, width=80)
    monkeypatch.setattr(_console, "Console", lambda **_: terminal)
    with _console.show_percentage("Comparing") as advance:
        advance(0.5)
    assert "%" not in seen.getvalue()
    monkeypatch.setattr(_console, "_SECONDS_BEFORE_PROGRESS", -1.0)
    with _console.show_percentage("Comparing") as advance:
        advance(0.5)
    assert "50%" in seen.getvalue()


def test_console_does_not_colour_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = _console.get_stdout()
    assert console.is_terminal
    with console.capture() as captured:
        console.print("1 run, 2.5 ms (*)")
    assert captured.get() == "1 run, 2.5 ms (*)\n"


def test_clean_notes_data_dependent_sizes(shell: Shell) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[4] x) => (int64[1, 2] y) {y = NonZero(x)}"""
    onnx.save(onnx.parser.parse_model(text), "n.onnx")
    code, out, _ = shell("clean", "n.onnx", "-o", "c.onnx")
    assert code == 0
    assert "note: sizes that depend on the data are dynamic, not fixed: y\n" in out
    code, out, _ = shell("clean", "c.onnx", "-o", "again.onnx")
    assert (code, "note:" in out) == (0, False)
