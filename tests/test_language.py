# SPDX-License-Identifier: Apache-2.0
"""Names, docstrings, comments and pages follow the rules of docs/writing.md."""

from pathlib import Path

import pytest
from language import check_file, check_functions, check_paths, is_verb
from places import ROOT


def list_parts(folder: str) -> list[str]:
    """Return the folders and modules in a folder; this file has examples of faults."""
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / folder).iterdir())
        if path != Path(__file__) and (path.suffix == ".py" or any(path.glob("*.[ph]*")))
    ]


CHECKED = (
    *("benchmarks", "docs", "examples", "tools"),
    *(*list_parts("src/anybit"), *list_parts("tests")),
    *(path.name for path in sorted(ROOT.glob("*.md"))),
)
# Folders whose module-level functions are named after what they do.
FUNCTIONS_CHECKED = (*list_parts("src/anybit"), "tools")


@pytest.mark.parametrize("path", CHECKED)
def test_language_of_checked_files_has_no_banned_words(path: str) -> None:
    faults = check_paths([ROOT / path])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", FUNCTIONS_CHECKED)
def test_language_of_function_names_is_verbs(path: str) -> None:
    faults = check_functions([ROOT / path])
    assert not faults, "\n".join(faults)


def test_language_tells_verbs_from_participles_and_nouns() -> None:
    verbs = ("pack_codes", "is_constant", "_embed_tensors", "to_ort_value", "reference_ops")
    others = ("_packed", "array_of_value", "scale_of", "quantizers_in", "_remark", "of_codes")
    assert all(map(is_verb, verbs))
    assert not any(map(is_verb, others))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("found = 1\n", "2:"),
        ("for each in ():\n    pass\n", "2:"),
        ('def f():\n    """What it returns."""\n', "3:"),
        ("# which is said of a node\n", "2:"),
        ('x = "weights that are held back"\n', "2:"),
    ],
)
def test_language_reports_the_line_of_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "module.py"
    path.write_text("\n" + text)
    (report,) = check_file(path)
    assert report.startswith(f"{path}:{fault}")


def test_language_skips_code_in_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nheld back\n```\n")
    assert check_file(page) == []
    page.write_text("held back\n")
    assert len(check_file(page)) == 1
