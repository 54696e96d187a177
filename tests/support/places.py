# SPDX-License-Identifier: Apache-2.0
"""Folders of the project and of shared test models."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EXAMPLE = EXAMPLES / "digits_w4a4.onnx"

SHARED = ROOT.parent / "shared"
MODELS = SHARED / "models"
SEEDS = SHARED / "seeds"

if os.environ.get("CI") and not SHARED.is_dir():
    raise FileNotFoundError(f"{SHARED} is missing: under CI nothing may be skipped for want of it")

needs_models = pytest.mark.skipif(
    not MODELS.is_dir(), reason="the models to run against are missing: no ../shared/models"
)
