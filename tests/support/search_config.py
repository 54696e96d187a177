# SPDX-License-Identifier: Apache-2.0
"""Thresholds of the search, changed for a test."""

from dataclasses import replace

import pytest

from anybit.ptq import config


def change_thresholds(monkeypatch: pytest.MonkeyPatch, section: str, **fields: object) -> None:
    """Change fields of a section of the default preset."""
    default = config.PRESETS["default"]
    changed = replace(getattr(default, section), **fields)
    monkeypatch.setitem(config.PRESETS, "default", replace(default, **{section: changed}))
