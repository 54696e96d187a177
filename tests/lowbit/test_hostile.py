# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile and long models: an error in one line, or a model that runs."""

import numpy as np
import pytest
from bad_models import BAD_MODELS
from bombs import CHAINS
from written_models import FOUR, QUANTIZED, made, weights

import anybit


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models_are_refused_in_words(name):
    proto, message = BAD_MODELS[name]
    with pytest.raises(anybit.ModelError, match=message):
        anybit.compile(proto)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_give_what_they_gave(name):
    proto = CHAINS[name](300)
    x = np.linspace(-2, 2, 4, dtype=np.float32)[None]
    if name in ("standard", "identities", "constants"):
        with pytest.raises(anybit.ModelError, match="no quantizers"):
            anybit.compile(proto, guarantee="exact")
        return
    compiled = anybit.compile(proto, guarantee="exact")
    wanted, got = anybit.load(proto).run({"x": x}), compiled.run({"x": x})
    for output, array in wanted.items():
        np.testing.assert_array_equal(got[output], array)


@pytest.mark.parametrize(("opset", "function"), [(1, "Relu"), (1000, "Sigmoid")])
def test_opsets_that_the_runtime_does_not_have_are_refused_in_words(opset, function):
    proto = made(
        f"{FOUR}\nc = Conv(q, w)\nd = {function}(c)\ny = Quant(d, s, z, b)",
        {**QUANTIZED, "w": weights(3, 4, 1, 1)},
        (4, 2, 2),
    )
    proto.opset_import[0].version = opset
    with pytest.raises(anybit.ModelError, match="the model cannot be loaded"):
        anybit.compile(proto)
