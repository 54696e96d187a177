# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile and long models: a one-line error, or a model that runs."""

import numpy as np
import pytest
from bad_models import BAD_MODELS
from bombs import CHAINS
from text_models import FOUR, QUANTIZED, parse_lines, random_weights

import anybit


@pytest.mark.parametrize("name", BAD_MODELS)
def test_compile_reports_bad_models(name):
    proto, message = BAD_MODELS[name]
    with pytest.raises(anybit.ModelError, match=message):
        anybit.compile(proto)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", CHAINS)
def test_compile_equals_graph_for_long_chains(name):
    proto = CHAINS[name](300)
    x = np.linspace(-2, 2, 4, dtype=np.float32)[None]
    if name in ("standard", "identities", "constants"):
        with pytest.raises(anybit.ModelError, match="no quantizers"):
            anybit.compile(proto, guarantee="exact")
        return
    compiled = anybit.compile(proto, guarantee="exact")
    expected, got = anybit.load(proto).run({"x": x}), compiled.run({"x": x})
    for output, array in expected.items():
        np.testing.assert_array_equal(got[output], array)


@pytest.mark.parametrize(("opset", "function"), [(1, "Relu"), (1000, "Sigmoid")])
def test_compile_reports_unknown_opsets(opset, function):
    proto = parse_lines(
        f"{FOUR}\nc = Conv(q, w)\nd = {function}(c)\ny = Quant(d, s, z, b)",
        {**QUANTIZED, "w": random_weights(3, 4, 1, 1)},
        (4, 2, 2),
    )
    proto.opset_import[0].version = opset
    with pytest.raises(anybit.ModelError, match="the model cannot be loaded"):
        anybit.compile(proto)
