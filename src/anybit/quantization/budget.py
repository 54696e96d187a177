# SPDX-License-Identifier: Apache-2.0
"""A mix of widths within a budget: chosen by what was measured, tried, and corrected.

Noise powers of layers add, nearly: networks with many Softmax are worse than the sum. So the mix is
run, all predictions are multiplied by the factor that this shows, and another one is chosen, three
times at most, or eight where none is quiet enough before; then cheaper ones near it are tried.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.errors import ModelError
from anybit.quantization.attempts import Attempt, Attempts, Progress
from anybit.quantization.certainty import FEWEST
from anybit.quantization.decibels import decibels, noise_of
from anybit.quantization.items import Sample
from anybit.quantization.knapsack import Option, front, quietest
from anybit.quantization.latency import STORED, Clock, latency
from anybit.quantization.mixing import (
    BASE,
    NARROW,
    TOO_MUCH,
    Noises,
    changed,
    measured,
    varied,
)
from anybit.quantization.operations import evenly, least_width, quieter
from anybit.quantization.options import Costs, parts
from anybit.quantization.placement import Layer, Source
from anybit.quantization.plan import Plan
from anybit.quantization.precision import FLOATS
from anybit.quantization.result import Mix
from anybit.quantization.samples import Samples
from anybit.quantization.schemes import Scheme
from anybit.quantization.search import Choice
from anybit.quantization.sensitivity import Probed
from anybit.quantization.shards import is_held, is_taken
from anybit.quantization.trials import Trials, in_time, or_even, quiet_enough
from anybit.text import counted
from anybit.words.budgets import Budget

_SAMPLES, _ITEMS, _TOGETHER = 40, 2, 5
# No layer gets more than that of the noise that is allowed.
_SHARE = 0.25
_MOST_POINTS = 100
# Shares of the time: choices at the base widths, sensitivity; the rest are rounds.
_CHOSEN, _MEASURED, _TRIED = 0.3, 0.3, 0.6

Size = Callable[[Plan], int]


@dataclass(frozen=True)
class Mixed:
    """What was chosen.

    Attributes:
        attempt: The model.
        noises: What its tensors do to the outputs.
        front: The best mixes, and those of one width, by bytes and operations.
        remarks: How long a run takes, if that was asked for; what is not promised.
    """

    attempt: Attempt
    noises: Noises
    front: tuple[Mix, ...]
    remarks: tuple[str, ...] = ()


def mixed(
    budget: Budget,
    wanted: Plan,
    attempts: Attempts,
    samples: Samples,
    macs: Mapping[Layer, int],
    size: Size,
    progress: Progress,
) -> Mixed:
    """The best mix of widths for a plan within a budget.

    Args:
        budget: What it may take, or what has to come out of it.
        wanted: The plan. Integers that were not asked for by name get other widths.
        attempts: What quantizes the model.
        samples: The data.
        macs: Multiplications of each layer.
        size: The bytes of all constants, by a plan.
        progress: Called with the share that is done.

    Raises:
        ModelError: There is none; the message says what was reached.
    """
    weights, activations = varied(wanted)
    if not any(each.dtype in FLOATS for each in attempts.model.graph.outputs):
        raise ModelError(
            f"budget {budget.words}: mixes are told apart by what they add to outputs that are "
            "floats, and there are none; let the model give its scores, too, or say --weights"
        )
    in_seconds, clock = budget.seconds is not None, Clock(next(iter(samples)))
    # With activations as floats operations fall with the bytes of weights.
    in_decibels = budget.noise is not None
    by_bytes = budget.bytes is not None or (in_decibels and not activations)
    costs = Costs(macs, by_bytes, narrow_first=budget.noise is not None)
    tensors = () if costs.by_bytes else tuple(activations)
    base = changed(wanted, tuple((each, BASE) for each in (*weights, *tensors)))
    share = (budget.bops or math.inf) * costs.bops(wanted) / max(costs.bops(base), 1)
    least = least_width(share) if tensors else BASE
    choices, narrow = _choices(base, least, attempts, lambda share: progress(_CHOSEN * share))
    enough = TOO_MUCH if budget.noise is None else _SHARE * budget.noise
    noises = measured(
        attempts.workers,
        attempts.model,
        Probed(tuple(base.weights), choices, _probed(samples), attempts.where, narrow),
        base,
        enough,
        lambda share: progress(_CHOSEN + _MEASURED * share),
        least,
    )
    if in_seconds:
        stored = {bits: changed(base, tuple((each, bits) for each in weights)) for bits in STORED}
        costs = replace(costs, latency=latency(attempts.model, stored, choices, clock))
    options = parts(base, noises, costs, least)
    even, narrow_even = (
        [costs.option(base, picks, noises) for picks in evenly(weights, tensors, bits)]
        for bits in (BASE, least)
    )

    def keeps(option: Option) -> bool:
        plan = changed(base, option.picks)
        if budget.bytes is not None:
            return size(plan) <= budget.bytes
        if budget.seconds is not None and costs.latency is not None:
            expected = costs.latency.rest + option.cost
            return expected <= budget.seconds and try_it.seconds(option) <= budget.seconds
        return costs.bops(plan) <= (budget.bops or 0) * costs.bops(wanted)

    try_it = Trials(base, attempts, clock, lambda share: progress(_TRIED + (1 - _TRIED) * share))
    if budget.noise is not None:
        option = quiet_enough(budget, options, try_it)
    elif costs.latency is not None:
        option = in_time(budget, options, costs.latency.rest, try_it)
    else:
        option = _affordable(budget, wanted, base, options, costs, size)
    if least == BASE:
        option = or_even(budget, option, _possible(even), keeps, try_it)
    else:
        # First without fewer bits of tensors: what is tried before may change a choice a bit.
        wide = quietest(parts(base, noises, costs), (budget.bops or 0) * costs.bops(wanted))
        first = or_even(budget, wide or option, _possible(even), keeps, try_it)
        option = quieter([first, option], _possible(narrow_even), keeps, try_it)
    attempt = try_it(option)
    if budget.bytes is not None and size(attempt.plan) > budget.bytes:
        raise ModelError(
            f"budget {budget.words}: the constants still take {size(attempt.plan)} bytes, since "
            "some weights are read as floats, too"
        )
    factor = try_it.factor(option)
    told = [option, *_thinned(front(options)), *even, *narrow_even]
    plans = [changed(base, each.picks) for each in told]
    mixes = [_mix(each, each is plans[0], noises, factor, costs, size) for each in plans]
    known = {replace(each, chosen=False): each for each in reversed(mixes) if each.sqnr > -math.inf}
    ordered = sorted(known.values(), key=lambda each: (each.bops, each.bytes, -each.sqnr))
    remarks = _replaced(weights) + _not_promised(budget, attempt)
    if in_seconds:
        remarks += (clock.remark(try_it.seconds(option)),)
    return Mixed(attempt, noises, tuple(ordered), remarks)


def noises_of(found: Attempt, attempts: Attempts, samples: Samples) -> Noises:
    """What each layer of a model does to its outputs at its own widths, all else being float."""
    plan = found.plan
    choices = {each: found.choices[each] for each in plan.activations}
    probed = Probed(tuple(plan.weights), choices, _probed(samples), attempts.where)
    return measured(attempts.workers, attempts.model, probed, plan, None, lambda share: None)


def _choices(
    base: Plan, least: int, attempts: Attempts, progress: Progress
) -> tuple[dict[Source, Choice], dict[Source, Choice]]:
    """What becomes of tensors in 8 bits, and of those that may have the fewest in so many."""
    if least > NARROW:
        found = attempts.choices(base, progress)
        return {source: found[source] for source in base.activations}, {}
    found = attempts.choices(base, lambda share: progress(share / 2))
    weights, tensors = varied(base)
    fewest = changed(base, tuple((each, least) for each in (*weights, *tensors)))
    narrow = attempts.choices(fewest, lambda share: progress((1 + share) / 2))
    return {source: found[source] for source in base.activations}, {
        source: narrow[source] for source in tensors
    }


def _affordable(
    budget: Budget,
    wanted: Plan,
    base: Plan,
    options: Sequence[Sequence[Option]],
    costs: Costs,
    size: Size,
) -> Option:
    """The mix with the least noise that costs no more than that."""
    least = changed(base, front(options)[0].picks)
    if budget.bytes is not None:
        rest = size(least) - front(options)[0].cost
        found = quietest(options, budget.bytes - rest)
        reached = f"{size(least)} bytes of constants"
    else:
        assert budget.bops is not None, "one of the three"
        whole = costs.bops(wanted)
        found = quietest(options, budget.bops * whole)
        reached = f"{100 * costs.bops(least) / whole if whole else 100:.3g} % of the operations"
    if found is None:
        raise ModelError(f"budget {budget.words}: the least possible is {reached}")
    return found


def _probed(samples: Samples) -> list[Sample]:
    """A few samples from everywhere; less if one is all that was given together."""
    numbers = [each for each in range(len(samples)) if not is_held(each)]
    most = _SAMPLES if samples.apart else _ITEMS
    step = math.ceil(len(numbers) / most)
    wanted = frozenset(each for at, each in enumerate(numbers) if is_taken(at, step))
    found = [each for _, each in samples.numbered(wanted)]
    starts = range(0, len(found), _TOGETHER)
    return [each for at in starts for each in samples.joined(found[at : at + _TOGETHER])]


def _replaced(weights: Mapping[Layer, Scheme]) -> tuple[str, ...]:
    """What is to be said of words that are not a width, of which a budget takes others."""
    count = sum(each.words.startswith("ternary") for each in weights.values())
    if not count:
        return ()
    return (
        f"The budget gives {counted(count, 'layer')} integers of other widths in place of ternary; "
        "name those that are to keep it: --layer NAME=ternary.",
    )


def _not_promised(budget: Budget, attempt: Attempt) -> tuple[str, ...]:
    """What is to be said if other data may have more noise than was asked for."""
    assert attempt.verdict is not None, "there are data"
    if budget.noise is None:
        return ()
    bound, count = attempt.verdict.sqnr_bound, attempt.verdict.samples
    held = f"{counted(count, 'sample')} held back"
    unsure = f"{budget.words} is not promised for other data"
    if attempt.verdict.seen:
        return (f"{unsure}: the one sample that there is chose quantizers, too; give hundreds.",)
    if count < FEWEST:
        return (f"{held}: too few to promise {budget.words} for other data; give hundreds.",)
    if bound is None:
        return (f"{unsure}: an output is 0 for nearly all of the {held}; give others, too.",)
    if noise_of(bound) <= budget.noise:
        return ()
    return (
        f"{unsure}: by how much the {held} differ it may be {bound:.1f} dB; give more, or ask for "
        "more decibels.",
    )


def _thinned(options: Sequence[Option]) -> list[Option]:
    step = math.ceil(len(options) / _MOST_POINTS)
    return list(options[::step])


def _possible(options: Iterable[Option]) -> list[Option]:
    return [each for each in options if each.noise < math.inf]


def _mix(
    wanted: Plan, chosen: bool, noises: Noises, factor: float, costs: Costs, size: Size
) -> Mix:
    kinds = {str(each.kind) for each in wanted.weights.values()}
    others = {str(each.kind) for each in wanted.activations.values()}
    name = "/".join([*kinds, *others]) if len(kinds) == 1 and len(others) <= 1 else ""
    sqnr = decibels(noises.total(wanted) * factor)
    return Mix(name, size(wanted), int(costs.bops(wanted)), sqnr, chosen)
