# SPDX-License-Identifier: Apache-2.0
import pytest
from programs import INSTRUCTION_SETS

from anybit._native import _core


@pytest.fixture(params=INSTRUCTION_SETS)
def level(request):
    before = _core.isa()
    try:
        _core.set_isa(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    _core.set_isa(before)
