# SPDX-License-Identifier: Apache-2.0
"""Which form of a model runs where: converted files, in the ONNX Runtime that is installed.

`tests/programs/ort_matrix.py` makes the files with `forms_matrix.py`, once, names their folder in
ANYBIT_FORMS, and runs this in one environment per ONNX Runtime. A row of the matrix is `exact`,
`refused` (the runtime does not load it) or `differs`; supported.json has what is known, and a
change in either direction fails. Verdicts are kept beside the files.
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
"""Rewrites take place at some of them; fusible rows run on all."""
LIBRARY = {"qonnx": (True,), "compiled": (True,), "portable": (False, True)}

pytestmark = pytest.mark.skipif(not ROWS, reason="ANYBIT_FORMS names no folder of converted files")


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    yield found
    (FOLDER / f"verdicts-{COLUMN}.json").write_text(json.dumps(found))


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
    """The arrays by their role, then by name."""
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    with np.load(path) as loaded:
        for key, array in loaded.items():
            role, _, name = key.partition(" ")
            found[role][name] = array
    return found


def wrong(path: Path, level: str, library: bool) -> list[str]:
    """The outputs with other numbers. Raises what the runtime raises."""
    arrays, loaded = arrays_of(path.with_suffix(".npz")), session(path, level, library)
    names = [each.name for each in loaded.get_outputs()]
    found = []
    for name, actual in zip(names, loaded.run(names, arrays["feed"]), strict=True):
        wanted, actual = arrays["expected"][name], actual.astype(np.float64)
        same = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
        if not np.all(same | arrays["undefined"].get(name, np.bool_(False))):
            found.append(f"{path.stem} {name} {level} {'with' if library else 'without'} library")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str, verdicts: dict[str, str]) -> None:
    found: dict[str, list[str]] = {"refused": [], "differs": []}
    for stem in ROWS[row]:
        for level in (*LEVELS, *BETWEEN_LEVELS * ("fusible" in row)):
            for library in LIBRARY.get(row.partition(":")[0], (False,)):
                try:
                    found["differs"] += wrong(FOLDER / f"{stem}.onnx", level, library)
                except Exception as error:  # the runtime's exceptions have no common base
                    found["refused"].append(f"{stem} {level}: {error}")
    verdicts[row] = next((verdict for verdict, cases in found.items() if cases), "exact")
    assert verdicts[row] == EXPECTED.get(row, {}).get(COLUMN), found


def test_no_row_is_missing() -> None:
    missing = EXPECTED.keys() - ROWS.keys()
    assert all(row.endswith(": networks") for row in missing), "whose files are not part of this"
