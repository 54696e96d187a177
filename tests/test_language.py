# SPDX-License-Identifier: Apache-2.0
"""Names, docstrings, comments and pages follow the rules of docs/writing.md."""

from pathlib import Path

import pytest
from language import check_file, check_functions, check_paths, is_verb
from places import ROOT

# Folders and files that follow the rules; a new one is added when it is rewritten.
CHECKED = (
    "benchmarks",
    "examples",
    "docs",
    *("src/anybit/cli", "src/anybit/comparison", "src/anybit/compat", "src/anybit/compiler"),
    *("src/anybit/evaluation", "src/anybit/inspection", "src/anybit/jax", "src/anybit/onnx"),
    *(
        "src/anybit/data",
        "src/anybit/metrics",
        "src/anybit/ops",
        "src/anybit/parallel",
        "src/anybit/ptq/algorithms",
        "src/anybit/ptq/calibration",
        "src/anybit/ptq/graph",
        "src/anybit/ptq/insertion",
        "src/anybit/ptq/mixed_precision",
        "src/anybit/ptq/remarks",
        "src/anybit/ptq/search",
        "src/anybit/ptq/specs",
        "src/anybit/quant_types",
    ),
    *("src/anybit/ptq/budget.py", "src/anybit/ptq/config.py", "src/anybit/ptq/mixed_precision"),
    "src/anybit/ptq/graph",
    *("src/anybit/torch/nn/_scale_search.py", "src/anybit/torch/nn/_calibrate.py"),
    "src/anybit/ptq/specs",
    *(f"src/anybit/{module.name}" for module in sorted((ROOT / "src/anybit").glob("*.py"))),
    *("tests/comparison", "tests/evaluation", "tests/inspection", "tests/jax", "tests/parallel"),
    *("tests/compiler", "tests/fpga", "tests/matrix", "tests/native", "tests/ops"),
    *("tests/check", "tests/onnx", "tests/qdq"),
    *("tests/playground", "tests/programs", "tests/support", "tests/torch"),
    *(f"src/anybit/ptq/{file.name}" for file in sorted((ROOT / "src/anybit/ptq").glob("*.py"))),
    *(f"tests/{module.name}" for module in sorted((ROOT / "tests").glob("test_[!l]*.py"))),
    *("tests/conftest.py", "tests/test_layout.py"),  # this file has examples of faults
    *("tests/cli", "tests/data", "tests/metrics", "tests/ptq", "tests/quant_types"),
    "ARCHITECTURE.md",
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)


# Folders whose module-level functions are named after what they do.
FUNCTIONS_CHECKED = (
    *(
        "src/anybit/compat",
        "src/anybit/compiler",
        "src/anybit/data",
        "src/anybit/metrics",
        "src/anybit/onnx",
    ),
    *("src/anybit/jax", "src/anybit/model.py", "src/anybit/ops", "src/anybit/parallel"),
    *("src/anybit/ptq", "src/anybit/quant_types", "src/anybit/torch"),
)


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
