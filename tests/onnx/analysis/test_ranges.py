# SPDX-License-Identifier: Apache-2.0
"""Input ranges as users write them."""

import numpy as np
import pytest
from analysis_checks import prepare
from small_models import model, node

from anybit.errors import OptionError
from anybit.onnx.analysis.ranges import make_input_values, parse_ranges, to_abstract_value


@pytest.mark.parametrize(
    ("text", "codes", "scale", "ends"),
    [
        ("uint8", range(256), 1, (0, 255)),
        ("uint8/255", range(256), np.float32(1 / 255), (0, 1)),
        ("int8*0.5", range(-128, 128), 0.5, (-64, 63.5)),
        ("INT4 * 2", range(-8, 8), 2, (-16, 14)),
        ("uint8-128/128", range(256), 1 / 128, (-1, 127 / 128)),
        ("uint1", range(2), 1, (0, 1)),
        ("int2/1e3", range(-2, 2), np.float32(1e-3), (-np.float32(2e-3), np.float32(1e-3))),
    ],
)
def test_input_ranges_types(
    text: str, codes: range, scale: float, ends: tuple[float, float]
) -> None:
    actual = to_abstract_value(text)
    assert actual.codes.hull == actual.codes.allowed == codes
    assert actual.codes.scale == scale
    assert (float(actual.lowest), float(actual.highest)) == tuple(map(float, ends))


@pytest.mark.parametrize(
    "arguments", ["-1,1", " -1 , 1.0", "-1e0,+1", (-1, 1), (-1.0, np.float32(1))]
)
def test_input_ranges_numbers(arguments: object) -> None:
    actual = to_abstract_value(arguments)
    assert actual.codes is None
    assert (float(actual.lowest), float(actual.highest)) == (-1, 1)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "uint",
            "uint0",
            "int25",
            "uint8/0",
            "uint8*0",
            "uint8/1e-50",
            "int8*1e39",
            "uint8/-2",
        ),
        *("1", "1,0", "nan,1", "0,inf", "a,b", "1,2,3", "float32", "uint8//2", "uint8*", "int8+1"),
        "uint8/" + "9" * 5000,
    ],
)
def test_input_ranges_refuse_invalid_text(text: str) -> None:
    with pytest.raises(OptionError, match="range"):
        to_abstract_value(text)


def test_input_ranges_names() -> None:
    inputs = prepare(model([node("Relu", "x", domain="")])).graph.inputs
    assert make_input_values(parse_ranges(["x=uint8"]), inputs).keys() == {"x"}
    assert make_input_values(parse_ranges(["uint8"]), inputs).keys() == {"x"}
    assert parse_ranges(["a=b=uint8"]) == {"a=b": "uint8"}
    with pytest.raises(OptionError, match=r"'z'.* no such input; inputs: x$"):
        make_input_values(parse_ranges(["z=uint8"]), inputs)
    with pytest.raises(OptionError, match="given twice"):
        parse_ranges(["x=uint8", "x=int8"])


def test_a_range_alone_is_that_of_the_only_input() -> None:
    inputs = prepare(model([node("Relu", "x", domain="")])).graph.inputs
    assert make_input_values("uint8", inputs).keys() == {"x"}
    assert make_input_values((-1, 1), inputs).keys() == {"x"}
    assert make_input_values(None, inputs) == {}
    for wrong in (3, {"x": 3}, {"x": None}):
        with pytest.raises(OptionError, match="range"):
            make_input_values(wrong, inputs)  # type: ignore[arg-type]
