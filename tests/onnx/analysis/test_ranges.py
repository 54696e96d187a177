# SPDX-License-Identifier: Apache-2.0
"""What is said of inputs."""

import numpy as np
import pytest
from carried import prepared
from small_models import model, node

from anybit.errors import OptionError
from anybit.onnx.analysis.ranges import carrier_of, carriers_of, named


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
def test_types(text: str, codes: range, scale: float, ends: tuple[float, float]) -> None:
    found = carrier_of(text)
    assert found.codes.hull == found.codes.allowed == codes
    assert found.codes.scale == scale
    assert (float(found.lowest), float(found.highest)) == tuple(map(float, ends))


@pytest.mark.parametrize("given", ["-1,1", " -1 , 1.0", "-1e0,+1", (-1, 1), (-1.0, np.float32(1))])
def test_numbers(given: object) -> None:
    found = carrier_of(given)
    assert found.codes is None
    assert (float(found.lowest), float(found.highest)) == (-1, 1)


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
def test_what_is_not_a_range(text: str) -> None:
    with pytest.raises(OptionError, match="range"):
        carrier_of(text)


def test_names() -> None:
    inputs = prepared(model([node("Relu", "x", domain="")])).graph.inputs
    assert carriers_of(named(["x=uint8"]), inputs).keys() == {"x"}
    assert carriers_of(named(["uint8"]), inputs).keys() == {"x"}
    assert named(["a=b=uint8"]) == {"a=b": "uint8"}
    with pytest.raises(OptionError, match=r"no input 'z'.* are x"):
        carriers_of(named(["z=uint8"]), inputs)
    with pytest.raises(OptionError, match="given twice"):
        named(["x=uint8", "x=int8"])


def test_a_range_alone_is_that_of_the_only_input() -> None:
    inputs = prepared(model([node("Relu", "x", domain="")])).graph.inputs
    assert carriers_of("uint8", inputs).keys() == {"x"}
    assert carriers_of((-1, 1), inputs).keys() == {"x"}
    assert carriers_of(None, inputs) == {}
    for wrong in (3, {"x": 3}, {"x": None}):
        with pytest.raises(OptionError, match="range"):
            carriers_of(wrong, inputs)  # type: ignore[arg-type]
