# SPDX-License-Identifier: Apache-2.0
"""Programs of all versions as they were stored: later libraries give the same results.

The files are never written again. A new version gets a new file.
"""

from pathlib import Path

import numpy as np
import pytest

from anybit.compiler.program import versions
from anybit.compiler.program.encoding import Encoded
from anybit.compiler.program.network import Network

FILES = sorted((Path(__file__).parent / "stored_programs").glob("*.npz"))
STORES = ("words", "bytes", "integers", "floats")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_stored_program_has_its_results(file: Path) -> None:
    with np.load(file) as arrays:
        program = Encoded(*(arrays[name] for name in STORES))
        inputs = [arrays[name] for name in sorted(arrays) if name.startswith("x")]
        outputs = [arrays[name] for name in sorted(arrays) if name.startswith("y")]
    assert file.stem == f"version_{program.words[0]}"
    results = Network(program).run(inputs)
    assert [y.tobytes() for y in results] == [y.tobytes() for y in outputs]


def test_all_versions_are_stored() -> None:
    every = range(versions.FIRST_VERSION, versions.VERSION + 1)
    assert [file.stem for file in FILES] == [f"version_{version}" for version in every]
