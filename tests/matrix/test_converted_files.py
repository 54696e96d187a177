# SPDX-License-Identifier: Apache-2.0
"""Support matrix: converted files in the installed ONNX Runtime.

`tests/programs/ort_matrix.py` makes the files once with `forms_matrix.py`, names their folder in
ANYBIT_FORMS, and runs these tests in one environment per ONNX Runtime. A row of the matrix is
`exact`, `refused` (the runtime does not load it) or `differs`. supported.json has the expected
results; a change in either direction fails. Results are written to the folder of the files.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

EXPECTED = json.loads((Path(__file__).parent / "supported.json").read_text())
FOLDER = Path(os.environ.get("ANYBIT_FORMS", ""))
COLUMN = os.environ.get("ANYBIT_FORMS_COLUMN", "newest")
FILES = FOLDER / "rows.json"
ROWS: dict[str, list[str]] = json.loads(FILES.read_text()) if FILES.is_file() else {}
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")
BETWEEN_LEVELS = ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED")
"""Some of them rewrite the graph; fusible rows run on all."""
LIBRARY = {"qonnx": (True,), "compiled": (True,), "portable": (False, True)}

pytestmark = pytest.mark.skipif(
    not ROWS, reason="ANYBIT_FORMS does not name a folder of converted files"
)


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, str]]:
    outcomes: dict[str, str] = {}
    yield outcomes
    (FOLDER / f"verdicts-{COLUMN}.json").write_text(json.dumps(outcomes))


def session(path: Path, level: str, library: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if library:
        import anybit.onnxruntime

        anybit.onnxruntime.register(options)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def arrays_of(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Load the arrays of a file, by role and name."""
    arrays: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    with np.load(path) as loaded:
        for key, array in loaded.items():
            role, _, name = key.partition(" ")
            arrays[role][name] = array
    return arrays


def wrong_outputs(path: Path, level: str, library: bool) -> list[str]:
    """Return the outputs that differ from the expected ones, one line per output."""
    arrays, loaded = arrays_of(path.with_suffix(".npz")), session(path, level, library)
    names = [port.name for port in loaded.get_outputs()]
    differences = []
    for name, actual in zip(names, loaded.run(names, arrays["feed"]), strict=True):
        correct, actual = arrays["expected"][name], actual.astype(np.float64)
        same = (actual == correct) | (np.isnan(actual) & np.isnan(correct))
        if not np.all(same | arrays["undefined"].get(name, np.bool_(False))):
            differences.append(
                f"{path.stem} {name} {level} {'with' if library else 'without'} library"
            )
    return differences


@pytest.mark.parametrize("row", ROWS)
def test_converted_files_match_support_matrix(row: str, outcomes: dict[str, str]) -> None:
    cases: dict[str, list[str]] = {"refused": [], "differs": []}
    for stem in ROWS[row]:
        for level in (*LEVELS, *BETWEEN_LEVELS * ("fusible" in row)):
            for library in LIBRARY.get(row.partition(":")[0], (False,)):
                try:
                    cases["differs"] += wrong_outputs(FOLDER / f"{stem}.onnx", level, library)
                except Exception as error:  # the runtime's exceptions have no common base
                    cases["refused"].append(f"{stem} {level}: {error}")
    outcomes[row] = next((outcome for outcome, faults in cases.items() if faults), "exact")
    assert outcomes[row] == EXPECTED.get(row, {}).get(COLUMN), cases


def test_converted_files_have_all_rows() -> None:
    missing = EXPECTED.keys() - ROWS.keys()
    assert all(row.endswith(": networks") for row in missing), missing
