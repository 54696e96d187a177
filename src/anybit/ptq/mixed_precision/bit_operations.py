# SPDX-License-Identifier: Apache-2.0
"""Mixes of few operations on bits, in which tensors that layers multiply have fewer than 8, too.

What counts is the product of both widths, and each bit less makes four times the noise. Weights of
2 bits times tensors of 8 are as many operations as 4 bits times 4, and the weights alone make eight
times the noise of both there. So tensors get fewer bits, as far as they would if all weights and
they had the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.mix_evaluator import MixEvaluator
from anybit.ptq.mixed_precision.noise_model import BASE, NARROW, WIDTHS
from anybit.ptq.mixed_precision.pareto import Assignment, Widths


def least_width(share: float, exact_bits: int) -> int:
    """Return the fewest bits that tensors get, by the share of the operations that 8 bits take.

    Args:
        share: The share.
        exact_bits: The fewest bits whose noise follows from that of 8: ranges are nearly the same.
    """
    if share >= 1:
        return BASE
    return exact_bits if BASE * math.sqrt(share) >= exact_bits else NARROW


def evenly(
    weights: Iterable[TargetNode], tensors: Iterable[ActivationTensor], least: int
) -> Iterator[Widths]:
    """All weights in one width, and all tensors in the same, but in so many bits at least."""
    weights, tensors = list(weights), list(tensors)
    for bits in WIDTHS:
        of_tensors = max(bits, least)
        yield (*((each, bits) for each in weights), *((each, of_tensors) for each in tensors))


def quieter(
    mixes: Sequence[Assignment],
    even: Sequence[Assignment],
    keeps: Callable[[Assignment], bool],
    try_it: MixEvaluator,
) -> Assignment:
    """The one of some mixes, and of the dearest even one that is kept, with the least noise.

    They are tried in their order.
    """
    dearest_first = sorted(even, key=lambda each: (-each.cost, each.noise))
    best, *others = (*mixes, *list(filter(keeps, dearest_first))[:1])
    for each in others:
        least = try_it.noise(best)
        worse = best if try_it.noise(each) < least else each
        best = each if worse is best else best
        if worse.picks != best.picks:
            try_it.forget(worse)
    return best
