# SPDX-License-Identifier: Apache-2.0
"""Programs with integer epilogues equal those with floats on every accumulator."""

from pathlib import Path

import numpy as np
import programs as made
import pytest

import anybit
from anybit.compiler.backends.integer_epilogues import make_integer_epilogues
from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program import reference
from anybit.compiler.program.network import Network
from anybit.compiler.requantize.affine_fit import locate_steps
from anybit.compiler.requantize.scaled_fit import fit_scaled
from anybit.compiler.requantize.step_function import StepFunction, bisect_steps

EXAMPLES = Path(__file__).parents[2] / "examples"


def all_points(reach):
    return np.minimum(reach.lowest + np.arange(reach.longest)[:, None], reach.highest)


def fit(epilogue, levels, reach):
    stairs = bisect_steps(lambda x: reference.apply_epilogue(epilogue, x, levels), levels, reach)
    return fit_scaled(stairs, reach)


@pytest.mark.parametrize("levels", [2, 3, 16, 255, 256])
@pytest.mark.parametrize(("kind", "late"), [("random", 0), ("ties", 1), ("rounded products", 1)])
def test_scaled_equals_affine_on_all_accumulators(levels, kind, late):
    random = np.random.default_rng(levels)
    lowest = -random.integers(1, 3000, 40)
    reach = IntegerRange(lowest, lowest + random.integers(0, 6000, 40))
    gains = random.normal(0, 3 * levels / 6000, 40)
    offsets = random.normal(0, levels / 2, 40)
    if kind == "ties":
        gains, offsets = 2.0 ** -random.integers(2, 9, 40), random.integers(0, levels, 40) / 4
    if kind == "rounded products":  # the line and its offset lose bits
        offsets -= 2**14
    offsets[0] = 1e9
    shift = {"random": levels // 2, "ties": 1, "rounded products": 2**14}[kind]
    epilogue = p.Affine(gains.astype(np.float32), offsets.astype(np.float32), shift)
    scaled = fit(epilogue, levels, reach)
    expected = reference.apply_epilogue(epilogue, all_points(reach), levels)
    got = reference.apply_epilogue(scaled, all_points(reach), levels)
    np.testing.assert_array_equal(got, expected)
    assert levels < 16 or bool(scaled.late.size) == late


@pytest.mark.parametrize("farthest", [0, 2, 3, 10**4])
def test_bisect_steps_gives_same_steps_with_any_guess(farthest):
    random = np.random.default_rng(farthest)
    lowest = -random.integers(1, 3000, 40)
    reach = IntegerRange(lowest, lowest + random.integers(0, 6000, 40))
    gains, offsets = random.normal(0, 0.1, 40), random.normal(0, 100, 40)
    gains[0] = 0
    epilogue = p.Affine(gains.astype(np.float32), offsets.astype(np.float32), 128)
    guess = locate_steps(epilogue, 256) + random.integers(-farthest, farthest + 1, (255, 40))
    bisected, guessed = (
        bisect_steps(lambda x: reference.apply_epilogue(epilogue, x, 256), 256, reach, near)
        for near in (None, guess)
    )
    np.testing.assert_array_equal(guessed.directions, bisected.directions)
    np.testing.assert_array_equal(guessed.thresholds, bisected.thresholds)


def test_no_scaled_equals_curve():
    reach = IntegerRange(np.array([0]), np.array([300]))
    squares = np.arange(1, 16)[:, None] ** 2
    assert fit_scaled(StepFunction(np.array([1]), squares), reach) is None


@pytest.mark.parametrize("seed", range(30))
def test_integer_epilogues_give_same_outputs(seed):
    program = made.make_program(made.FromGenerator(np.random.default_rng(seed)))
    changed = make_integer_epilogues(program)
    inputs = made.inputs_for(program, 3, seed)
    expected = reference.run(program, inputs)
    for outputs in reference.run(changed, inputs), Network(changed).run(inputs):
        for y, other in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(y, other)
    for before, after in zip(program.instructions, changed.instructions, strict=True):
        if isinstance(before, p.Product) and isinstance(before.epilogue, p.Affine):
            assert isinstance(after.epilogue, p.Scaled | p.Thresholds)


def test_quantized_network_has_no_float_epilogues():
    (program,) = anybit.compile(EXAMPLES / "digits_w4a4.onnx").report.programs
    epilogues = [
        at.epilogue
        for at in make_integer_epilogues(program).instructions
        if hasattr(at, "epilogue")
    ]
    assert {type(epilogue) for epilogue in epilogues[:-1]} == {p.Scaled}
