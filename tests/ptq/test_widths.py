# SPDX-License-Identifier: Apache-2.0
"""Bit widths of specs, and the noise of measured candidates."""

import pytest

from anybit import ModelError
from anybit.metrics.quality import QualityMetrics
from anybit.ptq.mixed_precision.sensitivity import get_noise
from anybit.ptq.mixed_precision.widths import set_width
from anybit.quant_types.spec import parse_quant_spec


def test_set_width_keeps_options_of_integers() -> None:
    spec = set_width(parse_quant_spec("int8 per-tensor narrow", "weights"), 4)
    assert (spec.bits, spec.narrow, spec.per_channel) == (4, True, False)
    assert spec.text == "int4 per-tensor narrow"


def test_set_width_drops_narrow_at_one_bit() -> None:
    assert not set_width(parse_quant_spec("int8 narrow", "weights"), 1).narrow


def test_set_width_rejects_floats() -> None:
    with pytest.raises(TypeError, match="'fp8_e4m3': only integers have other widths"):
        set_width(parse_quant_spec("fp8_e4m3", "weights"), 4)


def test_get_noise_needs_a_float_output() -> None:
    assert get_noise(QualityMetrics(30.0, None, 1, seen=True)) == pytest.approx(1e-3)
    for quality in (None, QualityMetrics(None, 1.0, 1, seen=True)):
        with pytest.raises(ModelError, match="no output is a float"):
            get_noise(quality)
