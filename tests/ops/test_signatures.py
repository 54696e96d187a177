# SPDX-License-Identifier: Apache-2.0
"""The Python and the C++ declaration of an operator are two copies of one fact: compare them."""

import inspect

import pytest
from backends import OPERATORS

from anybit._native import _core
from anybit.ops import Operator


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_operator_matches_native_declaration(operator: Operator) -> None:
    native = _core.descriptions[operator.name]
    declared = [
        (
            parameter.name,
            parameter.optional,
            parameter.domain.description,
            parameter.domain.integer,
            parameter.domain.minimum,
            parameter.domain.maximum,
        )
        for parameter in operator.inputs
    ]
    assert native["inputs"] == declared
    assert native["attributes"] == {item.name: item.default for item in operator.attributes}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_operator_has_declared_signature(operator: Operator) -> None:
    parameters = inspect.signature(operator.function).parameters
    assert list(parameters) == [
        *(item.name for item in operator.inputs),
        *(item.name for item in operator.attributes),
        "out",
    ]
    assert parameters["out"].default is None
    assert "Source: " in (operator.function.__doc__ or "")


def test_registry_has_every_native_operator() -> None:
    assert set(OPERATORS) == set(_core.descriptions)
