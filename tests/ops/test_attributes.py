# SPDX-License-Identifier: Apache-2.0
"""Attributes are read in one way, docstrings too, and inputs say what they are for."""

import enum
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from backends import OPERATORS

import anybit
from anybit.ops import RoundingMode
from anybit.ops.attribute import Attribute
from anybit.ops.domain import Role

FLAG = Attribute("signed", True, "signed")
NUMBER = Attribute("axis", 1, "axis")
MODE = Attribute("rounding_mode", "ROUND", "rounding_mode")
NAME = Attribute("dtype", "s8", "dst", ("dtype",))


class Text(enum.StrEnum):
    EIGHT = "s8"


@pytest.mark.parametrize(
    ("attribute", "arguments", "expected"),
    [
        (FLAG, True, True),
        (FLAG, 0, False),
        (FLAG, 7, True),
        (FLAG, np.float32(1), True),
        (FLAG, np.bool_(0), False),
        (FLAG, np.array(1), True),
        (NUMBER, np.int8(-2), -2),
        (NUMBER, True, 1),
        (MODE, RoundingMode.FLOOR, "FLOOR"),
        (MODE, "half_up", "half_up"),
        (NAME, np.int8, "int8"),
        (NAME, np.dtype("uint8"), "uint8"),
        (NAME, Text.EIGHT, "s8"),
        (NAME, SimpleNamespace(name="s8"), "s8"),
    ],
)
def test_attribute_reads_arguments(attribute: Attribute, arguments: Any, expected: Any) -> None:
    actual = attribute.parse(arguments)
    assert (actual, type(actual)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("attribute", "arguments", "message"),
    [
        (FLAG, "yes", "signed must be a bool, got 'yes'"),
        (FLAG, None, "signed must be a bool, got None"),
        (FLAG, 1.0, "signed must be a bool, got 1.0"),
        (NUMBER, 1.5, "integer"),
        (MODE, 3, "rounding_mode must be a string, got 3"),
    ],
)
def test_attribute_rejects_arguments(attribute: Attribute, arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        attribute.parse(arguments)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("flag", [True, 0, np.float32(1), np.float32(0), np.int8(1), np.bool_(0)])
def test_attributes_are_equal_in_all_libraries(flag: Any, library: str) -> None:
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    expected = anybit.int_quant(x, 1, 0, 2, signed=flag)
    reference = anybit.int_quant.operator.reference(x, 1, 0, 2, signed=flag)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(reference, expected)
    if library == "numpy":
        return
    theirs = pytest.importorskip(library)
    ours = importlib.import_module(f"anybit.{library}")
    arguments = theirs.tensor(x) if library == "torch" else x
    actual = ours.int_quant(arguments, 1, 0, 2, signed=flag)
    np.testing.assert_array_equal(np.asarray(actual), expected)


def test_attribute_reads_dtypes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert [NAME.parse(item) for item in (torch.int8, torch.uint8)] == ["int8", "uint8"]


@pytest.mark.parametrize(
    ("attribute", "stored", "expected"),
    [
        (FLAG, 1, True),
        (FLAG, 0, False),
        (NUMBER, -3, -3),
        (MODE, "half_even", "ROUND"),
        (MODE, "floor", "FLOOR"),
        (NAME, "whatever", "whatever"),
    ],
)
def test_attribute_reads_nodes(attribute: Attribute, stored: Any, expected: Any) -> None:
    actual = attribute.decode(stored)
    assert (actual, type(actual)) == (expected, type(expected))
    assert attribute.decode(attribute.encode(actual)) == actual


@pytest.mark.parametrize(
    ("attribute", "stored", "message"),
    [
        (FLAG, 2, "signed must be 0 or 1, got 2"),
        (FLAG, "1", "signed must be 0 or 1, got '1'"),
        (FLAG, 1.0, "signed must be an integer, got 1.0"),
        (NUMBER, 1.0, "axis must be an integer, got 1.0"),
        (MODE, 1, "rounding_mode must be a string, got 1"),
        (MODE, "WARP", "rounding_mode must be one of"),
        (NAME, 1, "dst must be a string, got 1"),
    ],
)
def test_attribute_rejects_nodes(attribute: Attribute, stored: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        attribute.decode(stored)


def test_attribute_is_mode_identifies_rounding_modes() -> None:
    modes = {
        (operator.name, attribute.name)
        for operator in anybit.ops.OPERATORS
        for attribute in operator.attributes
        if attribute.is_mode
    }
    assert {name for _, name in modes} == {"rounding_mode"}
    assert {name for name, _ in modes} == {"int_quant", "float_quant", "trunc", "trunc_v1"}


def test_operator_documents_every_parameter() -> None:
    for operator in anybit.ops.OPERATORS:
        message = operator.documentation
        declared = [*operator.inputs, *operator.attributes]
        assert set(message.arguments) == {"out", *(parameter.name for parameter in declared)}
        assert message.summary.endswith(".")
        assert message.returns
        assert message.source
        assert set(message.raises) == {"ValueError", "TypeError"}
        assert message.examples.startswith(">>> ")
    assert anybit.ops.OPERATORS[0].documentation.arguments["signed"] == (
        "Whether one bit is the sign."
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_inputs_have_roles(name: str) -> None:
    operator = getattr(anybit, name).operator
    first, *others = (declared.role for declared in operator.inputs)
    assert first is Role.DATA
    assert Role.SCALE in others
    assert Role.DATA not in others
    assert len(others) == len(set(others))
