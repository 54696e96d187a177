# SPDX-License-Identifier: Apache-2.0
"""Table of costs of product kernels: how the program that measures it reads and joins rows."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from places import ROOT
from scripts import load_module


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield load_module(ROOT / "benchmarks" / "product_costs.py")
    sys.modules.pop("_measure", None)


def test_rows_of_finds_every_level(module: ModuleType) -> None:
    source = module.SOURCE.read_text()
    table = source[source.index("constexpr Cost cost_of") :].partition("\n}\n")[0]
    rows = module.rows_of(source)
    assert len(rows) == table.count("case Level::") >= 8
    assert all(row.startswith("{") and row.endswith("}") for row in rows.values())


def test_least_joins_runs_by_kind(module: ModuleType) -> None:
    assert module.least(["{6.4, 3.5, 2.4}", "{7, 3.1, 2.5}"]) == "{6.4, 3.1, 2.4}"
