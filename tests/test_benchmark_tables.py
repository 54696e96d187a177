# SPDX-License-Identifier: Apache-2.0
"""Figures of a benchmark in the documentation: none is lost that was not measured anew."""

from places import ROOT
from scripts import module_at

_PAGE = """Before.

<!-- tools:begin -->
| | one | two |
| --- | --- | --- |
| float | 91.9 % | 76.5 % |
| ours | 33.4 dB, 92.0 % | 24.7 dB, 75.7 % |
| theirs | raises Error | -1.0 dB, 20.0 % |
<!-- tools:end -->
After.
"""
_ROWS = ("float", "ours", "new", "theirs", "never run")
with_figures = module_at(ROOT / "benchmarks" / "ptq" / "_table.py").with_figures


def test_what_was_not_measured_stays() -> None:
    assert with_figures(_PAGE, {"one": {}, "two": {}}, _ROWS) == _PAGE
    figures = {
        "one": {},
        "two": {
            "float": ("", "80.0 %", ""),
            "new": ("20.0 dB", "50.0 %", "1.0"),
            "theirs": ("raises ModuleNotFoundError", "", ""),
        },
    }
    expected = _PAGE.replace("76.5 %", "80.0 %").replace(
        "| theirs", "| new | | 20.0 dB, 50.0 % |\n| theirs"
    )
    assert with_figures(_PAGE, figures, _ROWS) == expected
    assert with_figures(expected, {"one": {}, "two": {}}, _ROWS) == expected


def test_another_task_is_another_column() -> None:
    found = with_figures(_PAGE, {"one": {}, "two": {}, "three": {"ours": ("9.0 dB", "1 %")}}, _ROWS)
    assert "| | one | two | three |\n| --- | --- | --- | --- |\n" in found
    assert "| ours | 33.4 dB, 92.0 % | 24.7 dB, 75.7 % | 9.0 dB, 1 % |\n" in found
    assert "| float | 91.9 % | 76.5 % | |\n" in found


def test_a_first_table() -> None:
    page = "<!-- tools:begin -->\n<!-- tools:end -->"
    found = with_figures(page, {"one": {"float": ("", "90 %", "")}}, _ROWS)
    assert (
        found
        == "<!-- tools:begin -->\n| | one |\n| --- | --- |\n| float | 90 % |\n<!-- tools:end -->"
    )
