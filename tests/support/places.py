# SPDX-License-Identifier: Apache-2.0
"""Paths of this checkout, and of test data that does not belong to it.

Two environment variables name folders outside the checkout. Tests that need a folder are skipped
where its variable is unset:

    ANYBIT_TEST_MODELS     networks (QONNX model zoo, exports of Brevitas): NAME.onnx, NAME.npz
    ANYBIT_TEST_DOCUMENTS  operator specifications with their sample implementations: *.txt
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "digits_w4a4.onnx"


def external_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names, or None if it is unset."""
    if not (value := os.environ.get(variable)):
        return None
    folder = Path(value).resolve()
    if not folder.is_dir():
        raise pytest.UsageError(f"{variable}={value} is not a folder: correct or unset it")
    return folder


MODELS_VARIABLE, DOCUMENTS_VARIABLE = "ANYBIT_TEST_MODELS", "ANYBIT_TEST_DOCUMENTS"
HAS_MODELS = external_folder(MODELS_VARIABLE) is not None
MODELS = external_folder(MODELS_VARIABLE) or Path(MODELS_VARIABLE)
DOCUMENTS = external_folder(DOCUMENTS_VARIABLE)
SMALL_MODELS = (
    *("TFC_1W1A", "TFC_2W2A", "cnv_1w1a"),
    *("kwsmlp_w3a3", "mobilenet_w4a4", "qkeras_jettagging"),
)

needs_models = pytest.mark.skipif(
    not HAS_MODELS, reason=f"no test models: set {MODELS_VARIABLE} to their folder"
)
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
# One skipped item instead of none where the models are missing.
every_model = pytest.mark.parametrize(
    "path", sorted(MODELS.glob("*.onnx")) or [MODELS / "missing.onnx"], ids=lambda path: path.stem
)
