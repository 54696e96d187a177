# SPDX-License-Identifier: Apache-2.0
"""Table of quantization tools in the documentation: updates keep all other figures."""

from places import ROOT
from scripts import load_module

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
update_table = load_module(ROOT / "benchmarks" / "ptq" / "_table.py").update_table


def test_update_table_keeps_other_figures() -> None:
    assert update_table(_PAGE, {"one": {}, "two": {}}, _ROWS) == _PAGE
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
    assert update_table(_PAGE, figures, _ROWS) == expected
    assert update_table(expected, {"one": {}, "two": {}}, _ROWS) == expected


def test_update_table_adds_a_column_per_task() -> None:
    table = update_table(_PAGE, {"one": {}, "two": {}, "three": {"ours": ("9.0 dB", "1 %")}}, _ROWS)
    assert "| | one | two | three |\n| --- | --- | --- | --- |\n" in table
    assert "| ours | 33.4 dB, 92.0 % | 24.7 dB, 75.7 % | 9.0 dB, 1 % |\n" in table
    assert "| float | 91.9 % | 76.5 % | |\n" in table


def test_update_table_fills_an_empty_table() -> None:
    page = "<!-- tools:begin -->\n<!-- tools:end -->"
    table = update_table(page, {"one": {"float": ("", "90 %", "")}}, _ROWS)
    assert (
        table
        == "<!-- tools:begin -->\n| | one |\n| --- | --- |\n| float | 90 % |\n<!-- tools:end -->"
    )
