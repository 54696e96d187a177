# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: what makes it of the pages, and what is asked of it when built."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import check_site
import pytest
from browser import Browser, needs_browser
from places import ROOT
from scripts import load_module

import anybit


@pytest.fixture(scope="module")
def configuration() -> ModuleType:
    return load_module(ROOT / "docs" / "conf.py")


def test_navigation_has_every_page_once(configuration: ModuleType) -> None:
    listed = [page for pages in configuration.NAVIGATION.values() for page in pages.values()]
    there = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.rst")]
    sources = [str(path.relative_to(ROOT / "docs").with_suffix("")) for path in there]
    assert sorted(page for page in listed if not page.startswith("/")) == sorted(
        page for page in sources if page != "index"
    )
    for entry in listed:
        assert not entry.startswith("/") or (ROOT / f"{entry[1:]}.md").exists(), entry


@pytest.mark.parametrize(
    ("docstring", "read"),
    [
        ("A formula:\n\n    y = x\n\nEnd.", "A formula:\n\n::\n\n    y = x\n\nEnd."),
        ("* a list\n\n    goes on", "* a list\n\n    goes on"),
        ("max |x| of `a |b| c`", "max \\|x\\| of `a |b| c`"),
        (
            "Args:\n    a, b: Both,\n        long.",
            "Args:\n    a: Both,\n        long.\n    b: Both,\n        long.",
        ),
    ],
)
def test_site_converts_docstrings(docstring: str, read: str, configuration: ModuleType) -> None:
    lines = docstring.split("\n")
    configuration.read_docstring(None, "function", "f", None, None, lines)
    assert "\n".join(lines) == read


def test_site_keeps_options_whole(configuration: ModuleType) -> None:
    blank = '<span class="w"> </span>'
    context = {"body": f"<pre>anybit{blank}a-b{blank}-o{blank}b.onnx{blank}--integer-only</pre>"}
    configuration.keep_options_whole(None, "index", "page.html", context, None)
    whole = [f'<span class="option">{option}</span>' for option in ("-o", "--integer-only")]
    assert context["body"] == (
        f"<pre>anybit{blank}a-b{blank}{whole[0]}{blank}b.onnx{blank}{whole[1]}</pre>"
    )


def test_site_shortens_signatures(configuration: ModuleType) -> None:
    def read(signature: str) -> tuple[str, str]:
        signature_and_result: tuple[str, str] = configuration.read_signature(
            None, "function", "f", anybit.bipolar_quant, None, signature, "Any"
        )
        return signature_and_result

    assert read("(x: Annotated[Any, 1])") == ("(x, scale, *, out=None)", "")
    assert read("(x: dict = <factory>)") == ("(x: dict = ...)", "Any")


def test_site_pages_link_back(
    configuration: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration, "ROOT", tmp_path)
    out = tmp_path / "site" / "docs"
    out.mkdir(parents=True)
    (out / "index.html").write_text("", encoding="utf-8")
    for source in configuration.BUILT:
        (tmp_path / source).parent.mkdir(parents=True)
        (tmp_path / source).write_text("<header><h1>x</h1></header>", encoding="utf-8")
    configuration.finish(SimpleNamespace(outdir=out.parent), None)
    for target in configuration.BUILT.values():
        assert 'href="../index.html"' in (out.parent / target).read_text(encoding="utf-8")
    assert list(check_site.faults_of_links(out.parent)) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<p id="there"><a href="#there">x</a> <a href="b.html#far">x</a>', None),
        ('<a href="https://example.com/a?b#c">x</a>', None),
        ('<a href="c.html">x</a>', "a.html: c.html leads nowhere"),
        ('<a href="b.html#near">x</a>', "a.html: b.html#near has no such anchor"),
        (
            '<a href="http://example.com">x</a>',
            "a.html: http://example.com is not a link to a page",
        ),
        (
            '<script src="https://example.com/a.js"></script>',
            "a.html loads https://example.com/a.js",
        ),
        ('<img src="a.png">', "a.html: a.png leads nowhere"),
    ],
)
def test_check_site_reports_bad_links(body: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body, encoding="utf-8")
    (tmp_path / "b.html").write_text("<h1 id=far>b</h1>", encoding="utf-8")
    assert list(check_site.faults_of_links(tmp_path)) == ([fault] if fault else [])


@needs_browser
def test_check_site_reports_bad_pages(tmp_path: Path) -> None:
    (tmp_path / "wide.html").write_text("<div style='width:900px'>x", encoding="utf-8")
    (tmp_path / "wrong.html").write_text("<script>missing()</script>", encoding="utf-8")
    with Browser() as browser:
        faults = list(check_site.faults_of_pages(browser, tmp_path))
    assert len([fault for fault in faults if "wide.html" in fault and "pixels wide" in fault]) == 2
    assert len([fault for fault in faults if "wrong.html" in fault and "missing" in fault]) == 4
