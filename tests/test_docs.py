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
import pytest
from places import ROOT
from scripts import module_at
from typer.testing import CliRunner

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# What is only shown: output, formulas, and other languages.
SHOWN = {"text", "cpp", "csharp", "rust", "cmake", "json"}


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
    return [page for page in PAGES if any(each.language == language for each in snippets(page))]


def shown_calls(page: Path) -> list[Snippet]:
    """Calls of `anybit` with what they print."""
    return [each for each in snippets(page) if each.code.startswith("$ anybit ")]


# Pages on which all that is shown of a command is what it prints; that of `check` is an excerpt.
PAGES_WITH_OUTPUT = [page for page in PAGES if shown_calls(page) and page.stem != "check"]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def name_and_packages(page: Path) -> str:
    """Also what its snippets need, so that an environment can ask for its own pages."""
    packages = {package for each in snippets(page) for package in each.packages}
    return "-".join([name(page), *sorted(packages)])


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def copy_of_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snippets find the examples, and what they write goes to a folder of the test."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)


def test_every_block_has_a_known_language() -> None:
    known = SHOWN | {"python", "bash"}
    for page in PAGES:
        assert page.read_text(encoding="utf-8").count("\n```") % 2 == 0, name(page)
        for snippet in snippets(page):
            assert snippet.language in known, f"{snippet}: {snippet.language}"


@pytest.mark.usefixtures("copy_of_examples")
@pytest.mark.parametrize(
    "page",
    [page for page in pages_with("python") if page not in PAGES_WITH_OUTPUT],
    ids=name_and_packages,
)
def test_python(page: Path) -> None:
    """The snippets of a page, one after the other; each sees the names of those before it."""
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
    "page", [page for page in pages_with("bash") if page not in PAGES_WITH_OUTPUT], ids=name
)
def test_command_line(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.language == "bash":
            run_calls(snippet)


def run_calls(snippet: Snippet) -> None:
    """The calls of `anybit`; what installs, tests or measures is left to CI."""
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
def test_shown_output(page: Path) -> None:
    """What a page shows of a command is what it prints, but for what machines differ in.

    What stands between runs too, commands and Python: the ones may need what the others wrote.
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
def test_program_in_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the page build the program, and it prints what is shown."""
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


def lines_of(text: str) -> list[list[str]]:
    """The words of each line without kernels, times, versions, and rulers as long as these."""
    kernel, time, version = (
        r"(dot|xor|and|wide)\d+|depthwise",
        r"[\d.]+ (us|ms|s)",
        r"\d+\.\d+\.\d+",
    )
    differing = re.compile(rf"\b({kernel}|{time}|{version})\b|─+")
    return [differing.sub("", line).split() for line in text.strip().splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: Path) -> None:
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


def test_every_page_is_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    for page in ROOT.glob("docs/**/*.md"):
        assert page in linked, name(page)


def test_generated_files_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CI checks with `python docs/generate.py --check`."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    generate = module_at(ROOT / "docs" / "generate.py")
    try:
        assert generate.differences() == []
    finally:
        for module in (path.stem for path in (ROOT / "docs").glob("_*.py")):
            sys.modules.pop(module, None)
