# SPDX-License-Identifier: Apache-2.0
"""Tables of sums and products become integer arithmetic, others do not."""

import numpy as np
import pytest

from anybit.compiler.backends.integer_pairs import evaluate
from anybit.compiler.backends.integer_tables import fit_table


def tabulate(function, levels, lowest=0, highest=255):
    y = function(*np.indices(levels).astype(np.float64))
    return np.clip(np.rint(y), lowest, highest).astype(np.uint8).ravel()


FUNCTIONS = {
    "sum": lambda x, y: 0.3141 * x + 0.7071 * y + 3,
    "difference": lambda x, y: 1.1831 * x - 0.8407 * y + 100,
    "product": lambda x, y: 0.0046713 * (x - 128) * y + 128,
    "product with two zeros": lambda x, y: 0.0131713 * (x - 90) * (y - 77) + 128,
    "few steps": lambda x, y: (x + 2 * y) / 150,
    "constant": lambda x, y: 0 * x + 7,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("levels", [(256, 256), (16, 15)])
def test_fitted_table_equals_sums_and_products(name, levels):
    table = tabulate(FUNCTIONS[name], levels, 13 * (name == "difference"))
    pair = fit_table(table, levels)
    assert pair.bits == 32
    assert pair.size <= 32
    np.testing.assert_array_equal(evaluate(pair, *np.indices(levels)).ravel(), table)


@pytest.mark.parametrize("function", [lambda x, y: abs(x - y), lambda x, y: (x + y) ** 2 / 999])
def test_tables_of_curves_stay(function):
    assert fit_table(tabulate(function, (256, 256)), (256, 256)) is None
