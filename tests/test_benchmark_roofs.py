# SPDX-License-Identifier: Apache-2.0
"""Roofs of product kernels: every kernel has a loop at every level, and times add up."""

import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from places import ROOT
from scripts import load_module


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield load_module(ROOT / "benchmarks" / "_roofs.py")
    sys.modules.pop("_measure", None)


def test_every_kernel_has_a_loop_at_every_level(module: ModuleType) -> None:
    source = (ROOT / "src/anybit/_native/lowbit/packed_product.cpp").read_text()
    names = re.search(r"names\[scheme_count\] = {(.*?)}", source, re.DOTALL)
    assert names is not None
    assert {*re.findall(r'"(\w+)"', names[1]), "winograd"} == set(module.KERNELS)
    for _, loops in module.LEVELS.values():
        assert {loop for loop, _ in module.KERNELS.values()} == set(loops)


def test_least_seconds_adds_the_products_of_all_kernels(module: ModuleType) -> None:
    rates = {"bytes": 100.0, "any bytes": 50.0, "bits": 400.0}
    assert module.least_seconds({"dot4": 200, "wide8": 100, "rows22": 800}, rates) == 8.0
    assert module.least_seconds({}, rates) == 0.0
