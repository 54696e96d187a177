# SPDX-License-Identifier: Apache-2.0
"""The documentation holds: every snippet runs, links resolve, generated files are up to date."""

import doctest
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from arduino import RAM, run_sketch
from c_targets import TARGETS
from places import ROOT
from scripts import load_module
from small_encoder import make_encoder, make_sentences
from typer.testing import CliRunner

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What is only shown: output, formulas, and other languages.
SHOWN = {"text", "c", "cpp", "csharp", "rust", "cmake", "make", "json"}


@dataclass(frozen=True)
class Snippet:
    """A fenced block. The words behind its language are the packages that it needs."""

    page: Path
    line: int
    language: str
    packages: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(page, text.count("\n", 0, match.start()) + 1, language, tuple(words.split()), code)
        for match in FENCE.finditer(text)
        for language, words, code in [match.groups()]
    ]


def pages_with(language: str) -> list[Path]:
    return [
        page for page in PAGES if any(snippet.language == language for snippet in snippets(page))
    ]


def shown_calls(page: Path) -> list[Snippet]:
    """Calls of `anybit` with what they print."""
    return [snippet for snippet in snippets(page) if snippet.code.startswith("$ anybit ")]


# These pages have tests of their own.
MICROCONTROLLER = ROOT / "docs" / "tutorial_microcontroller.md"
ENCODER = ROOT / "docs" / "tutorial_encoder.md"
OWN_TESTS = MICROCONTROLLER, ENCODER
# Pages that show the whole output of their commands.
PAGES_WITH_OUTPUT = [page for page in PAGES if shown_calls(page)]
PAGES_WITH_OUTPUT.remove(MICROCONTROLLER)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def name_and_packages(page: Path) -> str:
    """Also what its snippets need, so that an environment can ask for its own pages."""
    packages = {package for snippet in snippets(page) for package in snippet.packages}
    return "-".join([name(page), *sorted(packages)])


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def copy_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets find the examples, and what they write goes to a folder of the test."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def test_docs_blocks_name_a_language() -> None:
    languages = SHOWN | {"python", "bash"}
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0, name(page)
        for snippet in snippets(page):
            assert snippet.language in languages, f"{snippet}: {snippet.language}"


@pytest.mark.usefixtures("copy_of_examples")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("python") if page not in (*PAGES_WITH_OUTPUT, *OWN_TESTS)],
    ids=name_and_packages,
)
def test_docs_python_snippets_run(page: Path) -> None:
    """Run the snippets of a page in order; each sees the names of those before it."""
    names: dict[str, object] = {}
    for snippet in snippets(page):
        if snippet.language == "python":
            run(snippet, names)


def run(snippet: Snippet, names: dict[str, object]) -> None:
    if not all(map(importable, snippet.packages)):
        return
    with np.errstate(all="ignore"):
        if snippet.code.startswith(">>>"):
            run_session(snippet, names)
        else:
            code = "\n" * snippet.line + snippet.code
            exec(compile(code, str(snippet.page), "exec"), names)


def importable(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def run_session(snippet: Snippet, names: dict[str, object]) -> None:
    parser = doctest.DocTestParser()
    test = parser.get_doctest(snippet.code, names, str(snippet), str(snippet.page), snippet.line)
    test.globs = names  # a doctest copies what it is given
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=False)
    assert not report, "".join(report)


@pytest.mark.usefixtures("copy_of_examples")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("bash") if page not in (*PAGES_WITH_OUTPUT, ENCODER)],
    ids=name,
)
def test_docs_commands_run(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.language == "bash":
            run_calls(snippet)


def run_calls(snippet: Snippet) -> None:
    """Run the calls of `anybit`; CI runs the commands that install, test or measure."""
    if not all(map(importable, snippet.packages)):
        return
    from anybit.cli._commands import app

    for command in snippet.code.replace("\\\n", " ").replace("&&", "\n").splitlines():
        words = shlex.split(command, comments=True)
        if words[:1] == ["anybit"]:
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{snippet}: {command}\n{result.output}"


@pytest.mark.usefixtures("copy_of_examples")
@pytest.mark.parametrize("page", PAGES_WITH_OUTPUT, ids=name_and_packages)
def test_docs_commands_print_shown_output(page: Path) -> None:
    """Check that commands print what the page shows, except what differs by machine.

    The commands and the Python between them run too: they may write files for one another.
    """
    from anybit.cli._commands import app

    shown = shown_calls(page)
    assert shown
    names: dict[str, object] = {}
    for snippet in snippets(page):
        if snippet.language == "python":
            run(snippet, names)
        elif snippet.language == "bash":
            run_calls(snippet)
        elif snippet in shown:
            call, _, expected = snippet.code.partition("\n")
            result = CliRunner().invoke(app, shlex.split(call)[2:])
            assert lines_of(result.output) == lines_of(expected), str(snippet)


@pytest.mark.usefixtures("copy_of_examples")
@pytest.mark.skipif(None in map(shutil.which, ("bash", "c++")), reason="no C++ compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="the commands are for Linux")
def test_docs_cpp_tutorial_builds_and_prints_shown_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the page's commands build the program, and that it prints what is shown."""
    page = ROOT / "docs" / "tutorial_cpp.md"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    script, shown = ["set -e"], ""
    for snippet in snippets(page):
        call, _, output = snippet.code.partition("\n")
        if snippet.language == "bash":
            script.append(f"{{\n{snippet.code}}} > /dev/null")
        elif call.startswith("$ "):
            script.append(call.removeprefix("$ "))
            shown += output
        elif snippet.language == "cpp":
            assert snippet.code in (ROOT / "examples/cpp/digits.cpp").read_text(encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, check=False
    )
    assert shown
    assert (done.stdout, done.stderr) == (shown, "")


@pytest.mark.usefixtures("copy_of_examples")
def test_docs_microcontroller_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the page after the one that trains its network; compile and run the sketch."""
    tools = ("arm-none-eabi-gcc", "qemu-system-arm", "anybit")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    absent = [package for package in ("torch", "sklearn") if not importable(package)]
    absent += [tool for tool in tools if not shutil.which(tool)]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    names: dict[str, object] = {}
    sources = (ROOT / "examples" / "microcontroller").iterdir()
    texts = "".join(path.read_text(encoding="utf-8") for path in sources)
    for snippet in (*snippets(ROOT / "docs" / "tutorial_training.md"), *snippets(MICROCONTROLLER)):
        if snippet.language == "python":
            run(snippet, names)
        elif snippet.language in ("c", "cpp"):
            assert snippet.code in texts, str(snippet)
        elif snippet.page == MICROCONTROLLER:
            run_commands(snippet)
    if TARGETS["atmega"].missing:
        return
    sketch = ROOT / "examples" / "microcontroller" / "digits.ino"
    printed, static_bytes = run_sketch(sketch, tmp_path / "net", tmp_path, 4)
    assert printed == [0, 7, 4, 1]
    assert static_bytes < RAM / 2


@pytest.mark.usefixtures("copy_of_examples")
def test_docs_encoder_tutorial_runs() -> None:
    """Run the page on a small encoder in place of its example."""
    onnx.save(make_encoder(), "minilm.onnx")
    np.savez("sentences.npz", **make_sentences())
    names: dict[str, object] = {}
    for snippet in snippets(ENCODER):
        if snippet.language == "bash":
            run_calls(snippet)
        elif snippet.language == "python":
            run(snippet, names)
    assert names["session"].run(None, make_sentences())[0].shape == (8, 16)  # type: ignore[attr-defined]


def run_commands(snippet: Snippet) -> None:
    """Run shell commands; compare what a shown one prints, except for sizes."""
    command, _, shown = snippet.code.partition("\n")
    if snippet.language == "bash":
        command, shown = snippet.code, ""
    script = f"set -eo pipefail\n{command.removeprefix('$ ')}"
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    size = re.compile(r"[\d.]+ KB")
    assert (size.sub("", done.stdout), done.returncode) == (size.sub("", shown), 0), done.stderr


def lines_of(text: str) -> list[list[str]]:
    """Return the words of each line, without kernels, times, versions and rulers."""
    kernel, time, version = (
        r"(dot|xor|and|wide)\d+|depthwise",
        r"[\d.]+ (us|ms|s)",
        r"\d+\.\d+\.\d+",
    )
    differing = re.compile(rf"\b({kernel}|{time}|{version})\b|─+")
    return [differing.sub("", line).split() for line in text.strip().splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_docs_links_lead_to_pages(page: Path) -> None:
    """Links to files of the project; anchors must be headings there."""
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)}: {link}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_docs_pages_are_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    for page in ROOT.glob("docs/**/*.md"):
        assert page in linked, name(page)


def test_docs_are_short() -> None:
    pages = ROOT.glob("docs/**/*.md")
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) < 25_000


def test_docs_generated_files_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what CI checks with `python docs/generate.py --check`."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    generate = load_module(ROOT / "docs" / "generate.py")
    try:
        assert generate.differences() == []
    finally:
        for module in (path.stem for path in (ROOT / "docs").glob("_*.py")):
            sys.modules.pop(module, None)
