# SPDX-License-Identifier: Apache-2.0
"""Tests of the playground in a real browser: exact results, the form, the layout."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import ml_dtypes
import numpy as np
import pytest
from backends import OPERATORS
from browser import Browser, needs_browser
from cases import assert_same_bits, every_case, expected_result
from playground_calls import can_be_called, run_calls
from playground_page import needs_page, open_page

import anybit.formats
from anybit.ops.domain import Role
from anybit.ops.grids import Call

pytestmark = [needs_browser, needs_page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_page() as browser:
        yield browser


def test_playground_matches_case_tables(browser: Browser) -> None:
    questions = [pair for pair in every_case() if can_be_called(pair)]
    assert len(questions) > 0.95 * len(list(every_case()))
    wrong = []
    for (operator, case), result in zip(questions, run_calls(browser, questions), strict=True):
        if case.raises is not None:
            if not isinstance(result, str) or not re.search(case.raises[1], result):
                wrong.append(f"{operator} {case.name}: {result!r}")
        elif isinstance(result, str):
            wrong.append(f"{operator} {case.name}: refused, {result}")
        else:
            try:
                assert_same_bits(result, expected_result(operator, case), case)
            except AssertionError as error:
                wrong.append(f"{operator} {error}")
    assert wrong == []


def test_playground_omits_only_cases_that_raise() -> None:
    left = [case for operator, case in every_case() if not can_be_called((operator, case))]
    assert all(case.raises is not None for case in left)


@pytest.fixture
def page(browser: Browser) -> Browser:
    browser.said.clear()
    show(browser)
    return browser


def show(browser: Browser, **fields: object) -> None:
    """Open a link to the page with these fields."""
    browser.value(f"location.hash = {urlencode(fields)!r}; playground.page.open()")


def fill(browser: Browser, name: str, value: str) -> None:
    """Type a value into a field of the form."""
    browser.value(
        f"(() => {{ const field = document.getElementById('form').elements['{name}'];"
        f"field.value = {value!r};"
        "field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def number(browser: Browser) -> list[str]:
    return browser.value("[...document.querySelectorAll('#number td')].map(e => e.textContent)")


def codes(browser: Browser) -> list[list[str]]:
    return browser.value(
        "[...document.querySelectorAll('#codes tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )


def refusal(browser: Browser) -> str:
    return browser.value("document.getElementById('refused').textContent")


def test_form_shows_value_codes_and_steps(page: Browser) -> None:
    fill(page, "operator", "int_quant")
    fill(page, "bitwidth", "2")
    fill(page, "scale", "2^-2")
    fill(page, "x", "0.3")
    assert number(page)[:6] == ["0.300000012", "0x3e99999a", "0.25", "0x3e800000", "1", "01"]
    assert [row[:3] for row in codes(page)] == [
        ["-0.5", "-2", "10"],
        ["-0.25", "-1", "11"],
        ["0", "0", "00"],
        ["0.25", "1", "01"],
    ]
    steps = page.value("document.querySelector('#steps path.steps').getAttribute('d')")
    assert steps.count("V") >= 3
    assert refusal(page) == ""
    assert page.said == []


@pytest.mark.parametrize("name", OPERATORS)
def test_form_supports_all_operators(page: Browser, name: str) -> None:
    fill(page, "operator", name)
    assert refusal(page) == ""
    assert number(page)[3].startswith("0x")
    assert page.value("document.querySelectorAll('#steps path.steps').length") == 1
    assert page.said == []


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("bitwidth", "2.5", "bitwidth must be an integer >= 1, got 2.5"),
        ("bitwidth", "0", "bitwidth must be an integer >= 1, got 0"),
        ("scale", "a half", "scale must be a number, such as .*, got 'a half'"),
        ("x", "", "x must be a number, such as .*, got ''"),
        ("x", "constructor", "x must be a number, such as .*, got 'constructor'"),
        ("from", "9", r"from must lie below to, got 9 and .*"),
    ],
)
def test_form_reports_bad_fields(page: Browser, field: str, text: str, message: str) -> None:
    show(page, operator="int_quant")
    fill(page, field, text)
    assert re.fullmatch(message, refusal(page))
    invalid = "document.querySelector('[aria-invalid]').name"
    assert page.value(invalid) == field
    fill(page, field, "3" if field != "from" else "")
    assert refusal(page) == ""
    assert page.value("document.querySelector('[aria-invalid]')") is None
    assert page.said == []


def test_link_restores_form(page: Browser) -> None:
    show(page, operator="int_quant", bitwidth=5, scale=0.1, narrow="true", rounding_mode="UP", x=7)
    link = page.value("location.hash.slice(1)")
    kept = number(page)
    show(page, operator="bipolar_quant")
    page.value(f"location.hash = {link!r}; playground.page.open()")
    assert number(page) == kept
    assert kept[2:6] == ["1.5", "0x3fc00000", "15", "01111"]


@pytest.mark.parametrize(
    "fields",
    [
        {"operator": "dynamic_quantize", "type": "float16"},
        {"operator": "int_quant", "type": "float128", "rounding_mode": "SIDEWAYS"},
        {"operator": "none of them"},
        {"operator": "float_quant", "exponent_bias": 2000, "x": 0},
        {"operator": "float_quant", "exponent_bias": "3e38", "x": 0},
        {"operator": "int_quant", "type": "float16", "from": 0, "to": "1e9"},
        {"operator": "trunc_v1", "type": "float64", "from": "-1e307", "x": "1e300"},
    ],
    ids=lambda fields: fields["operator"],
)
def test_link_with_bad_fields_shows_result(page: Browser, fields: dict[str, object]) -> None:
    show(page, **fields)
    page.value("playground.page.update()")
    assert number(page)[1].startswith("0x")
    assert page.value("[...document.querySelectorAll('select')].every(select => select.value)")
    assert page.said == []


def test_form_keeps_dtype_only_if_operator_takes_it(page: Browser) -> None:
    show(page, operator="int_quant", type="float16")
    fill(page, "operator", "dynamic_quantize")
    assert number(page)[1] == "0x3f4ccccd"
    assert page.said == []


def test_form_fills_named_formats(page: Browser) -> None:
    operator = next(
        declared.name
        for declared in OPERATORS.values()
        if any(item.role is Role.MANTISSA_BITWIDTH for item in declared.inputs)
    )
    show(page, operator=operator, scale=1)
    fill(page, "format", "float4_e2m1fn")
    values = [float(row[0]) for row in codes(page)]
    assert [-values[0], values[-1]] == [anybit.formats.float4_e2m1fn.largest] * 2
    assert values == anybit.formats.float4_e2m1fn.values().tolist()
    theirs = encode_as(ml_dtypes.float4_e2m1fn, values)
    assert [int(row[1], 16) % 16 for row in codes(page) if row[0] != "0"] == [
        code for code, value in zip(theirs, values, strict=True) if value
    ]
    fill(page, "format", "float8_e5m2")
    fill(page, "x", "-300")
    code = encode_as(ml_dtypes.float8_e5m2, [-320.0])[0]
    assert number(page)[2] == "-320"
    assert int(number(page)[4], 16) == code


def encode_as(dtype: type, values: list[float]) -> list[int]:
    """Return the codes of values in a format of ml_dtypes."""
    return np.array(values, np.float32).astype(dtype).view(np.uint8).tolist()


@pytest.mark.parametrize(
    ("name", "parameters", "attributes"),
    [
        ("int_quant", {"scale": 0.1, "zeropt": 3, "bitwidth": 4}, {"signed": False}),
        ("int_quant", {"scale": 0.1, "zeropt": -2, "bitwidth": 3}, {"signed": True}),
        (
            "trunc",
            {"scale": 0.25, "zeropt": 8, "in_bitwidth": 8, "out_scale": 2, "out_bitwidth": 4},
            {"signed": True},
        ),
        ("bipolar_quant", {"scale": 0.7}, {}),
    ],
)
def test_form_shows_codes_of_the_grid(
    page: Browser, name: str, parameters: dict[str, float], attributes: dict[str, bool]
) -> None:
    flags = {key: str(value).lower() for key, value in attributes.items()}
    show(page, operator=name, **parameters, **flags)
    operator = OPERATORS[name]
    arrays = {key: np.float32(value) for key, value in parameters.items()}
    grid = operator.grid(Call(arrays, operator.complete(attributes)))
    shown = [(float(row[0]), int(row[1])) for row in codes(page)]
    assert [code for _, code in shown] == list(grid.codes)
    values = grid.decode(np.array([code for _, code in shown]))
    assert [value for value, _ in shown] == pytest.approx(values.tolist(), rel=1e-7)


def test_form_omits_bits_of_codes_beyond_the_width(page: Browser) -> None:
    """Use an operator that does not clip."""
    show(page, operator="trunc_v1", scale=0.5, in_bitwidth=8, out_bitwidth=6, x=1000)
    assert number(page)[2:6] == ["250", "0x437a0000", "500", ""]
    fill(page, "x", "-60")
    assert number(page)[4:6] == ["-30", "100010"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_page_fits_width_and_color_scheme(scheme: str, width: int) -> None:
    with open_page(width=width, scheme=scheme) as browser:
        assert browser.value("document.documentElement.scrollWidth") <= width
        paper = browser.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper))) > 384) == (scheme == "light")
        assert browser.said == []
