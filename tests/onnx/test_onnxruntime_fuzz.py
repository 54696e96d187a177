# SPDX-License-Identifier: Apache-2.0
"""Hostile nodes: whatever a file holds, the library computes or raises, and nothing else."""

import contextlib
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from ort_backend import DOMAINS, model, session

from anybit.ops import OPERATORS, Operator


def names_of(operator: Operator) -> tuple[str, ...]:
    return (operator.onnx_name, *operator.onnx_aliases)


NAMES = sorted({name for operator in OPERATORS for name in names_of(operator)})
SPELLINGS = sorted(
    {attribute.onnx_name for operator in OPERATORS for attribute in operator.attributes}
)
NUMERIC = ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
DTYPES = [np.dtype(name) for name in ("f4", "f4", "f4", *NUMERIC, "c8", "O")]
SHAPES = [
    (),
    (1,),
    (0,),
    (3,),
    (2, 3),
    (2, 1),
    (1, 3),
    (0, 3),
    (2, 0),
    (1, 1, 1),
    (2, 3, 4),
    (1,) * 9,
]
NUMBERS = [0, 1, 2, 3, 4, 8, -1, 25, 127, 128, 1100, 2**31, -(2**63), 2**63 - 1]
REALS = [*map(float, NUMBERS), 0.5, 2.5, -0.0, 1e-45, 3e38, float("nan"), float("inf")]
VALUES: list[Any] = [
    *(0, 1, 2, -1, 2**62, -(2**63), 0.0, 1.5, float("nan")),
    *("ROUND", "floor", "HALF_EVEN", "", "s8", "u8", "per_channel", "reciprocal", "x" * 5000, "\0"),
    *([], [1, 2], [0.5], ["a"], helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0])),
]


def random_array(
    random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    if dtype.kind == "O":
        return np.full(shape, "1", object)
    with np.errstate(all="ignore"):
        return np.asarray(random.choice(np.array(REALS), shape)).astype(dtype)


def random_dims(random: np.random.Generator, shape: tuple[int, ...]) -> list[Any] | None:
    """Return a declared shape, true or not."""
    kind = random.integers(6)
    if kind == 0:
        return None
    return [
        [size, f"d{axis}", None, size, 2**40, 0][int(random.integers(6)) if kind == 1 else kind - 2]
        for axis, size in enumerate(shape)
    ]


def hostile(random: np.random.Generator) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return a model of one node, mostly nearly valid, and its feeds."""
    name = str(random.choice(NAMES))
    expected = [
        len(operator.inputs)
        for operator in OPERATORS
        if name in (operator.onnx_name, *operator.onnx_aliases)
    ]
    count = int(random.integers(9)) if random.random() < 0.1 else int(random.choice(expected))
    strange = random.random() < 0.4
    inputs, constants, feeds, names = {}, {}, {}, []
    for place in range(count):
        dtype = DTYPES[random.integers(len(DTYPES) if strange or place else 5)]
        shape = SHAPES[random.integers(len(SHAPES))] if strange or not place else (1,)
        array = random_array(random, shape, dtype)
        if not strange and place:
            array = np.ones(shape, np.float32) * random.integers(1, 5)
        names.append("" if random.random() < 0.03 else f"v{place}")
        if place and random.random() < 0.6:
            constants[f"v{place}"] = array
        else:
            inputs[f"v{place}"] = (array.dtype, random_dims(random, array.shape))
            feeds[f"v{place}"] = array
    spellings = random.choice(SPELLINGS, random.integers(4), replace=False)
    attributes = {str(spelling): VALUES[random.integers(len(VALUES))] for spelling in spellings}
    attributes = {key: value for key, value in attributes.items() if value != []}
    domain = next(operator.onnx_domain for operator in OPERATORS if name in names_of(operator))
    if random.random() < 0.05:
        domain = str(random.choice(DOMAINS))
    node = helper.make_node(name, names, ["y"], "node", domain=domain)
    node.attribute.extend(helper.make_attribute(*attribute) for attribute in attributes.items())
    after = helper.make_node("Identity", ["y"], ["z"])
    outputs: dict[str, Any] = {"z": (None, None)}
    if random.random() < 0.1:
        outputs["y"] = (DTYPES[random.integers(len(DTYPES))], None)
    return model([node, after], inputs, outputs, constants), feeds


@pytest.mark.parametrize("seed", range(40))
def test_onnxruntime_hostile_nodes_raise_or_compute(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(25):
        file, feeds = hostile(random)
        with contextlib.suppress(Exception):
            loaded = session(file)
            for _ in range(2):
                with contextlib.suppress(Exception):
                    loaded.run(None, feeds)
