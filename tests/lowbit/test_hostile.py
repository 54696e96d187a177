# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile and long models: an error in one line, or a model that runs."""

import numpy as np
import pytest
from bad_models import BAD_MODELS
from bombs import CHAINS

import anybit


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models_are_refused_in_words(name):
    proto, message = BAD_MODELS[name]
    with pytest.raises(anybit.ModelError, match=message):
        anybit.compile(proto)


@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_give_what_they_gave(name):
    proto = CHAINS[name](300)
    x = np.linspace(-2, 2, 4, dtype=np.float32)[None]
    compiled = anybit.compile(proto, guarantee="exact")
    wanted, got = anybit.load(proto).run({"x": x}), compiled.run({"x": x})
    for output, array in wanted.items():
        np.testing.assert_array_equal(got[output], array)
