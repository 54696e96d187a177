# SPDX-License-Identifier: Apache-2.0
"""Multiplications of layers, against those of `inspect` and computed by hand."""

from float_models import attention, convolutions, data_for, recurrent

import anybit


def test_macs_match_inspect() -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions", 4))
    proven = {row.name: row.layer.macs for row in anybit.inspect(convolutions()).layers}
    assert {layer.name: layer.macs for layer in result.layers} == {
        name: proven[name] for name in ("first", "depthwise", "pointwise", "up", "head")
    }


def test_macs_with_dynamic_sizes_are_those_of_a_sample() -> None:
    result = anybit.quantize(attention(), data_for("attention", 4))
    macs = {layer.name: layer.macs for layer in result.layers}
    assert macs["query"] == 7 * 16 * 16
    assert macs["scores"] == macs["context"] == 7 * 7 * 16
    assert macs["wide"] == macs["narrow"] == 7 * 16 * 32


def test_macs_of_recurrent_layers_count_all_steps() -> None:
    result = anybit.quantize(recurrent(), data_for("recurrent", 4))
    steps = 9 * 2
    assert [layer.macs for layer in result.layers] == [
        steps * (32 * 6 + 32 * 8),
        steps * (15 * 8 + 15 * 5),
    ]
