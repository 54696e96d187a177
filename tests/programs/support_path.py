# SPDX-License-Identifier: Apache-2.0
"""Imported first by a program: what the tests share can be imported then."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
