# SPDX-License-Identifier: Apache-2.0
"""Random transformers in every form, in plain ONNX Runtime, at every ISA level: the same bits."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from random_transformers import (
    PAST,
    TOKENS,
    Builder,
    assert_near,
    draw_style,
    make_feeds,
    open_plain,
)

import anybit
from anybit.quant_types.layer_info import Guarantee

ACTIVATIONS = (
    "int8 dynamic",
    "uint8 dynamic",
    "int8 dynamic per-tensor",
    "uint8 dynamic per-tensor",
    "int4 dynamic",
    "mxfp8",
    "uint8",
)
WEIGHTS = ("int8", "int4 per-block 32", "int4", "int3 per-block 8", "int2")
FORMS = ("qdq", "standard", "portable", "qonnx", "compact")
SIZES = ((TOKENS, PAST), (1, PAST), (TOKENS, 0), (0, 0))
# The last one's square overflows in LayerNormalization of ONNX Runtime, and not in regions.
HOSTILE = (np.nan, -np.inf, 0, 1e-41, 1e18, 1e38)
EXACT = {Guarantee.EXACT, Guarantee.CERTIFIED}
RUN = """
import pathlib, sys
import numpy as np
import anybit
for folder in pathlib.Path(sys.argv[1]).iterdir():
    with np.load(folder / "feed.npz") as feed:
        outputs = anybit.load(folder / "compiled.onnx").run(dict(feed))
    np.savez(folder / "outputs.npz", **outputs)
"""
Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A quantized transformer, inputs of several sizes, and its outputs without optimizations."""

    path: Path
    feeds: list[Outputs]
    expected: list[Outputs]


def make_case(seed: int, folder: Path) -> Case:
    proto = Builder(draw_style(seed), seed).build()
    rng = np.random.default_rng([seed, 1])
    activations, weights = str(rng.choice(ACTIVATIONS)), str(rng.choice(WEIGHTS))
    samples = [make_feeds(proto, [seed, index]) for index in range(8)]
    data = samples if activations == "uint8" else None
    path = folder / "quantized.onnx"
    anybit.quantize(proto, data, activations=activations, weights=weights).save(path)
    feeds = [make_feeds(proto, seed, tokens=tokens, past=past) for tokens, past in SIZES]
    feeds += [make_hostile_feed(proto, seed, number) for number in HOSTILE]
    loaded = anybit.load(path)
    return Case(path, feeds, [loaded.run(feed) for feed in feeds])


def make_hostile_feed(proto: onnx.ModelProto, seed: int, number: float) -> Outputs:
    """Return inputs with a row of a number, and an element of it in another row."""
    feed = make_feeds(proto, seed)
    feed["x"][0, 1] = number
    feed["x"][1, 3, 2] = number
    return feed


def assert_equal_bits(actual: Outputs, expected: Outputs) -> None:
    """Compare outputs without the signs of zeros, which conversions may drop."""
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(actual[name], array, equal_nan=True), name


def check_forms(case: Case) -> None:
    """Compare all forms with the quantized file, in anybit and in plain ONNX Runtime."""
    compiled = anybit.compile(case.path)
    classes = [layer.guarantee for layer in compiled.report.products]
    outputs = [compiled.run(feed) for feed in case.feeds]
    for form in FORMS:
        path = case.path.with_name(f"{form}.onnx")
        converted = anybit.convert(case.path, to=form)
        assert converted.exact
        converted.save(path)
        check_form(case, path, is_plain=form not in ("qonnx", "compact"))
        if form in ("qonnx", "compact"):
            again = anybit.compile(path)
            assert [layer.guarantee for layer in again.report.products] == classes
            for feed, expected in zip(case.feeds, outputs, strict=True):
                assert_equal_bits(again.run(feed), expected)


def check_form(case: Case, path: Path, *, is_plain: bool) -> None:
    loaded = anybit.load(path)
    runs = open_plain(onnx.load(path)) if is_plain else ()
    for feed, expected in zip(case.feeds, case.expected, strict=True):
        assert_equal_bits(loaded.run(feed), expected)
        if runs:
            as_written, optimized = (run(feed) for run in runs)
            assert_equal_bits(as_written, expected)
            assert_near(optimized, expected)


def check_classes(case: Case) -> None:
    """Compare a compiled transformer with its file: bits, unless a layer is bounded."""
    compiled = anybit.compile(case.path)
    compiled.save(case.path.with_name("compiled.onnx"))
    saved = anybit.load(case.path.with_name("compiled.onnx"))
    classes = {layer.guarantee for layer in compiled.report.layers} - {None}
    for feed, expected in zip(case.feeds[:-1], case.expected, strict=False):
        outputs = saved.run(feed)
        assert_equal_bits(compiled.run(feed), outputs)
        if classes <= EXACT:
            assert_equal_bits(outputs, expected)
        else:
            assert_near(outputs, expected)


@pytest.mark.parametrize("seed", range(3))
def test_random_transformers_have_the_same_bits_in_all_forms(seed: int, tmp_path: Path) -> None:
    case = make_case(seed, tmp_path)
    check_forms(case)
    check_classes(case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 60))
def test_more_random_transformers_have_the_same_bits_in_all_forms(
    seed: int, tmp_path: Path
) -> None:
    case = make_case(seed, tmp_path)
    check_forms(case)
    check_classes(case)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_bit_of_transformers(
    threads: int, tmp_path: Path, set_threads: Callable[[int], None]
) -> None:
    case = make_case(1, tmp_path)
    compiled = anybit.compile(case.path)
    feed = make_feeds(Builder(draw_style(1), 1).build(), 7, batch=3, tokens=70, past=9)
    set_threads(1)
    expected = compiled.run(feed)
    set_threads(threads)
    assert_equal_bits(compiled.run(feed), expected)


@pytest.mark.slow
def test_levels_do_not_change_a_bit_of_transformers(level: str, tmp_path: Path) -> None:
    """Run saved files in a process of the level: the library of ONNX Runtime reads it once."""
    for seed in range(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        case = make_case(seed, folder)
        anybit.compile(case.path).save(folder / "compiled.onnx")
        np.savez(folder / "feed.npz", **case.feeds[0])
    environment = {**os.environ, "ANYBIT_ISA": level}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    for folder in tmp_path.iterdir():
        with np.load(folder / "feed.npz") as feed, np.load(folder / "outputs.npz") as outputs:
            expected = anybit.load(folder / "compiled.onnx").run(dict(feed))
            assert_equal_bits(dict(outputs), expected)
