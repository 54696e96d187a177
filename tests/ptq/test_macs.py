# SPDX-License-Identifier: Apache-2.0
"""Multiplications of layers, against those that `inspect` reports, and by hand."""

from float_models import attention, convolutions, data_for, recurrent

import anybit


def test_macs_match_inspect() -> None:
    found = anybit.quantize(convolutions(), data_for("convolutions", 4))
    proven = {row.name: row.layer.macs for row in anybit.inspect(convolutions()).layers}
    assert {layer.name: layer.macs for layer in found.layers} == {
        name: proven[name] for name in ("first", "depthwise", "pointwise", "up", "head")
    }


def test_free_sizes_are_those_of_a_sample() -> None:
    found = anybit.quantize(attention(), data_for("attention", 4))
    macs = {layer.name: layer.macs for layer in found.layers}
    assert macs["query"] == 7 * 16 * 16
    assert macs["scores"] == macs["context"] == 7 * 7 * 16
    assert macs["wide"] == macs["narrow"] == 7 * 16 * 32


def test_recurrent_layers_multiply_at_every_step() -> None:
    found = anybit.quantize(recurrent(), data_for("recurrent", 4))
    steps = 9 * 2
    assert [layer.macs for layer in found.layers] == [
        steps * (32 * 6 + 32 * 8),
        steps * (15 * 8 + 15 * 5),
    ]
