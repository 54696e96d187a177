# SPDX-License-Identifier: Apache-2.0
"""BlockQuant beside the rules of microxcaling, torchao and ModelOpt.

The rules are written anew in `block_rules`, and torchao and ModelOpt run where they are installed.
"""

import numpy as np
import pytest
from block_rules import (
    BLOCK,
    ELEMENTS,
    NVFP4_BLOCK,
    microxcaling_exponents,
    modelopt_nvfp4,
    quantize_mx,
    round_to_elements,
    torchao_exponents,
)

import anybit

MODES = ("floor", "ceil", "even", "rceil")
FLOATS = ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4")
LARGEST = float(np.finfo(np.float32).max)


def make_blocks(size: int, seed: int) -> np.ndarray:
    """Return blocks of random numbers, of ties, and of numbers next to powers of two and 0."""
    rng = np.random.default_rng(seed)
    blocks = rng.normal(size=(400, size)) * 10.0 ** rng.uniform(-30, 30, size=(400, 1))
    ties = rng.integers(-512, 512, (200, size)) * 2.0 ** rng.integers(-60, 60, (200, 1))
    powers = 2.0 ** rng.integers(-100, 100, (200, 1))
    edges = powers * rng.choice([1, 0.5, -0.25, 0, -0.0, 1e-3], (200, size))
    edges[:, 0] = np.nextafter(np.float32(powers[:, 0]), np.float32(0))
    edges[::2, 0] = np.nextafter(np.float32(powers[::2, 0]), np.float32(np.inf))
    hostile = np.zeros((6, size))
    hostile[1, 3], hostile[2, 3] = LARGEST, -LARGEST
    hostile[3:5] = LARGEST * rng.uniform(-1, 1, (2, size))
    hostile[5, 0] = -0.0
    return np.concatenate([blocks, ties, edges, hostile]).astype(np.float32)


def make_tiny_blocks(size: int) -> np.ndarray:
    """Return blocks whose scales are below the ends of E8M0, some of subnormals alone."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(200, size)) * 2.0 ** rng.uniform(-150, -110, (200, 1))).astype(
        np.float32
    )


@pytest.mark.parametrize("form", ELEMENTS)
def test_mx_equals_rule_of_microxcaling(form: str) -> None:
    """Compare ties to even; the default of microxcaling rounds ties away from zero."""
    for x in (make_blocks(BLOCK, 0), make_tiny_blocks(BLOCK)):
        exponents = microxcaling_exponents(x, form)
        result = anybit.block_quant(x, format=form)
        np.testing.assert_array_equal(result, quantize_mx(x, form, exponents), strict=True)
        away = quantize_mx(x, form, exponents, "away")
        step = result != away
        scaled = (x / 2.0 ** exponents[:, None].astype(np.float64))[step]
        values = ELEMENTS[form].values
        assert np.isin(np.abs(scaled), (values[1:] + values[:-1]) / 2).all()
    assert microxcaling_exponents(np.float32([[1e38]]), form).item() <= 127


@pytest.mark.parametrize("form", FLOATS)
@pytest.mark.parametrize("mode", MODES)
def test_mx_equals_torchao_where_the_scales_are_those_of_floor(form: str, mode: str) -> None:
    x = make_blocks(BLOCK, 1)
    exponents, floor = (torchao_exponents(x, form, name) for name in (mode, "floor"))
    assert set(np.unique(exponents - floor)) == ({0} if mode == "floor" else {0, 1})
    result = anybit.block_quant(x, format=form)
    same = exponents == floor
    np.testing.assert_array_equal(result[same], quantize_mx(x, form, exponents)[same])


def test_mx_scale_modes_differ_at_the_top_of_a_binade() -> None:
    """Show amax = 15 in mxfp4: floor clips to 12; a scale of 4 has 16 instead."""
    x = np.zeros((1, BLOCK), np.float32)
    x[0, :2] = 15, 5
    results = [quantize_mx(x, "mxfp4", torchao_exponents(x, "mxfp4", mode))[0, 0] for mode in MODES]
    assert results == [12, 16, 16, 16]
    assert anybit.block_quant(x, format="mxfp4")[0, 0] == 12


def make_nvfp4_tensor(seed: int) -> np.ndarray:
    """Return blocks, some too small for a scale in float8, and one of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, NVFP4_BLOCK)) * 2.0 ** rng.uniform(-24, 3, (300, 1))
    x[7] = 0
    return (x * 10.0 ** rng.uniform(-25, 25)).astype(np.float32)


@pytest.mark.parametrize("seed", range(20))
def test_nvfp4_equals_rule_of_modelopt(seed: int) -> None:
    """Compare blocks; if the scale rounds to 0, ModelOpt uses the smallest and anybit returns 0."""
    x = make_nvfp4_tensor(seed)
    expected, g, underflows = modelopt_nvfp4(x)
    result = anybit.block_quant(x, g, format="nvfp4")
    np.testing.assert_array_equal(result[~underflows], expected[~underflows], strict=True)
    assert underflows.any()
    assert not result[underflows].any()
    assert (np.abs(x[underflows]) <= 2.0**-10 / 448 * np.abs(x).max()).all()


@pytest.mark.parametrize("form", ELEMENTS)
def test_rule_of_elements_equals_float_formats(form: str) -> None:
    """Check the list of values by their number and ends."""
    counts = {"mxfp8": 127, "mxfp8_e5m2": 124, "mxfp6": 32, "mxfp6_e3m2": 32, "mxfp4": 8}
    values = ELEMENTS[form].values
    assert (len(values), values[0], values[-1]) == (
        counts.get(form, 128),
        0,
        ELEMENTS[form].largest,
    )
    np.testing.assert_array_equal(round_to_elements(values, ELEMENTS[form]), values)


@pytest.mark.parametrize("form", FLOATS)
@pytest.mark.parametrize("mode", MODES)
def test_rules_equal_torchao(form: str, mode: str) -> None:
    torch = pytest.importorskip("torch", reason="torchao needs PyTorch")
    reason = "torchao is not installed"
    tensors = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason=reason)
    config = pytest.importorskip("torchao.prototype.mx_formats.config", reason=reason)
    types = {
        "mxfp8": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp6": tensors.DTYPE_FP6_E2M3,
        "mxfp6_e3m2": tensors.DTYPE_FP6_E3M2,
        "mxfp4": torch.float4_e2m1fn_x2,
    }
    x = make_blocks(BLOCK, 2)
    scaling = config.ScaleCalculationMode(mode)
    scales, codes = tensors.to_mx(torch.from_numpy(x), types[form], BLOCK, scaling)
    result = tensors.to_dtype(codes, scales, types[form], BLOCK, torch.float32).numpy()
    exponents = torchao_exponents(x, form, mode)
    stored = scales.view(torch.uint8).numpy().reshape(-1).astype(int) - 127
    nonzero = x.any(1)
    np.testing.assert_array_equal(stored[nonzero], exponents[nonzero])
    np.testing.assert_array_equal(result, quantize_mx(x, form, exponents))
    if mode == "floor":
        np.testing.assert_array_equal(result, anybit.block_quant(x, format=form))


@pytest.mark.parametrize("seed", range(5))
def test_rules_equal_modelopt(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="ModelOpt needs PyTorch")
    qtensor = pytest.importorskip(
        "modelopt.torch.quantization.qtensor.nvfp4_tensor", reason="ModelOpt is not installed"
    )
    x = make_nvfp4_tensor(seed)
    quantized, scales, g = qtensor.NVFP4QTensor.quantize(torch.from_numpy(x.copy()), NVFP4_BLOCK)
    blocks = {-1: NVFP4_BLOCK}
    result = quantized.dequantize(scale=scales, double_scale=g, block_sizes=blocks).numpy()
    expected, own, underflows = modelopt_nvfp4(x)
    assert g.item() == own
    np.testing.assert_array_equal(result, expected)
    result = result[~underflows]
    np.testing.assert_array_equal(anybit.block_quant(x, own, format="nvfp4")[~underflows], result)
