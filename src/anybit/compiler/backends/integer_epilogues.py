# SPDX-License-Identifier: Apache-2.0
"""Programs without floats after their sums, for targets that have none."""

from dataclasses import replace

import numpy as np

from anybit.compiler.partition.accumulators import bound_sums
from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.partition.windows import is_padded
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import apply_epilogue, unpack_weights
from anybit.compiler.requantize.affine_fit import locate_steps
from anybit.compiler.requantize.scaled_fit import fit_scaled
from anybit.compiler.requantize.step_function import StepFunction, bisect_steps, read_steps
from anybit.onnx.graph.constants import Array

_FEW_LEVELS = 4
"""Up to this number of levels, thresholds stay: comparing takes less than a multiplication."""

_MOST_EVALUATIONS = 2**26
_MOST_ENTRIES = 2**22


def make_integer_epilogues(program: p.Program) -> p.Program:
    """Replace float epilogues to codes by integer ones, and many thresholds by a multiplication.

    Every new epilogue equals the old one on all accumulators that codes and weights can give: a
    `Scaled` where one exists, else thresholds, else a table. Remaining floats are those of inputs,
    outputs, `Add` and `Multiply`, and of a `Rounded` that rises and falls over too many
    accumulators for a table.

    Args:
        program: A verified program.
    """
    return replace(
        program,
        instructions=tuple(
            _replace_epilogue(at, program) if isinstance(at, p.Product) else at
            for at in program.instructions
        ),
    )


def _replace_epilogue(at: p.Product, program: p.Program) -> p.Product:
    if isinstance(at.epilogue, p.Arithmetic | p.Table | p.Scaled | p.Piecewise):
        return at
    target = program.tensors[at.target]
    if isinstance(at.epilogue, p.Thresholds) and target.levels <= _FEW_LEVELS:
        return at
    reach = find_reach(at, program.tensors[at.source], target.channels)
    return replace(at, epilogue=_find_epilogue(at.epilogue, target.levels, reach))


def _find_epilogue(
    epilogue: p.Thresholds | p.Affine | p.Rounded, levels: int, reach: IntegerRange
) -> p.Epilogue:
    """Return the cheapest integer epilogue that equals one on a range; itself if there is none."""
    stairs = _find_steps(epilogue, levels, reach)
    if stairs is None:
        return _tabulate(epilogue, levels, reach)
    scaled = fit_scaled(stairs, reach) if levels > _FEW_LEVELS else None
    if scaled is not None or isinstance(epilogue, p.Thresholds):
        return scaled or epilogue
    thresholds = stairs.within(reach).thresholds
    return p.Thresholds(stairs.directions.astype(np.int32), thresholds.T.astype(np.int32).ravel())


def _find_steps(
    epilogue: p.Thresholds | p.Affine | p.Rounded, levels: int, reach: IntegerRange
) -> StepFunction | None:
    """Return the steps of an epilogue on a range; None if it is not known to be monotonic."""
    match epilogue:
        case p.Thresholds():
            thresholds = epilogue.thresholds.reshape(-1, levels - 1).T
            return StepFunction(epilogue.directions.astype(np.int64), thresholds.astype(np.int64))
        case p.Rounded() if not _is_monotonic(epilogue):
            if reach.longest * reach.lowest.size > _MOST_EVALUATIONS:
                return None
            return read_steps(_evaluate(epilogue, levels, reach), levels, reach)
    guess = locate_steps(epilogue, levels) if isinstance(epilogue, p.Affine) else None
    return bisect_steps(
        lambda points: apply_epilogue(epilogue, points, levels), levels, reach, guess
    )


def _is_monotonic(epilogue: p.Rounded) -> bool:
    """Return whether all steps are monotonic for all numbers, and none gives NaN."""
    safe = (p.Operation.ADD, p.Operation.SUBTRACT, p.Operation.SUBTRACT_FROM)
    scaling = (p.Operation.MULTIPLY, p.Operation.DIVIDE)
    bounds = (p.Operation.MAXIMUM, p.Operation.MINIMUM)
    finite = bool(np.isfinite(epilogue.scales).all())
    for step in epilogue.steps:
        finite &= step.operation in (*safe, *scaling, *bounds)
        finite &= bool(np.isfinite(step.operands).all())
        finite &= step.operation not in scaling or bool(np.all(step.operands != 0))
    return finite


def _evaluate(epilogue: p.Epilogue, levels: int, reach: IntegerRange) -> Array:
    """Return the indices of all accumulators, points x channels; the last one is repeated."""
    points = reach.lowest + np.arange(reach.longest)[:, None]
    return apply_epilogue(epilogue, np.minimum(points, reach.highest), levels)


def _tabulate(epilogue: p.Epilogue, levels: int, reach: IntegerRange) -> p.Epilogue:
    if reach.longest * reach.lowest.size > _MOST_ENTRIES:
        return epilogue
    entries = _evaluate(epilogue, levels, reach).T.astype(np.uint8)
    return p.Table(reach.lowest.astype(np.int32), entries.ravel())


def find_reach(at: p.Product, source: p.Tensor, channels: int) -> IntegerRange:
    """Return bounds of the accumulators of each channel, over all codes of the source."""
    weights = unpack_weights(at, channels, source.channels)
    highest = source.lowest + source.step * (source.levels - 1)
    return bound_sums(weights, source.lowest, highest, padded=is_padded(at.window))
