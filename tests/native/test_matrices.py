# SPDX-License-Identifier: Apache-2.0
"""Native products of float64 matrices, and rounding in turn, at every ISA level."""

import numpy as np
import pytest

from anybit._native import _core, add_product, round_terms


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 8, 32), (37, 61, 300), (130, 259, 5)])
def test_products_are_added_up_term_by_term(isa: str, shape: tuple[int, int, int]) -> None:
    rows, columns, terms = shape
    rng, before = np.random.default_rng(0), _core.isa()
    wide = rng.normal(size=(rows, columns + 3))
    a, b = rng.normal(size=(terms, rows)).T, rng.normal(size=(columns, terms)).T
    expected, rest = wide.copy(), wide.copy()
    for k in range(terms):
        expected[:, 2:-1] += a[:, k, None] * b[k]
        rest[:, 2:-1] -= a[:, k, None] * b[k]
    try:
        _core.set_isa(isa)
    except ValueError:
        pytest.skip("unsupported by this processor")
    difference = wide.copy()
    add_product(wide[:, 2:-1], np.ascontiguousarray(a), b)
    add_product(difference[:, 2:-1], a, np.asfortranarray(b), subtract=True)
    _core.set_isa(before)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(difference, rest)


def test_rounding_in_turn_has_the_same_bits_at_every_level() -> None:
    rng, before = np.random.default_rng(0), _core.isa()
    weights = rng.normal(size=(150, 2, 21)) * 9
    triangles = np.triu(rng.normal(size=(2, 150, 150)) / 20, 1) + np.eye(150)
    results = []
    for isa in ("baseline", "avx2", "avx512"):
        try:
            _core.set_isa(isa)
        except ValueError:
            continue
        errors, rounded = weights.copy(), np.empty(weights.shape, np.float32)
        scale = {"scale": np.full((1, 2, 21), 2, np.float32), "zeropt": 0, "bitwidth": 20}
        round_terms("int_quant", errors, triangles, rounded, scale)
        np.testing.assert_array_equal(errors, weights - rounded)
        later = np.einsum("gij,jgc->igc", triangles - np.eye(150), errors)
        assert (np.abs(weights + later - rounded) <= 1 + 1e-6).all()
        results.append(rounded.tobytes())
    _core.set_isa(before)
    assert len(set(results)) == 1


def test_matrices_of_other_shapes_and_types_are_refused() -> None:
    square, flat = np.zeros((4, 4)), np.zeros((4, 1, 4), np.float32)
    for arguments in (
        (square, square, square[:3]),
        (np.asfortranarray(square), square, square),
        (square, flat, flat),
    ):
        with pytest.raises(ValueError, match=r"match$|must be "):
            add_product(*arguments)
    scale = {"scale": 1, "zeropt": 0, "bitwidth": 8}
    with pytest.raises(ValueError, match="must be contiguous"):
        round_terms("int_quant", np.zeros((4, 1, 4)), square[None, :3], flat, scale)
