# SPDX-License-Identifier: Apache-2.0
"""Whether fewer choices do better: on the whole network, first of all by samples that nothing was
chosen by.

Choices are made for one layer after the other, on few samples. What is best for each of them need
not be for all together, nor on other data. So the network is run with all choices, with ranges and
smoothing alone, and with none, and what adds the least noise is kept. Where few samples were set
apart, some that choices were made by stand beside them: luck is the greater danger then. Of more,
one or two that are a little louder must not decide what happens to all others: what is simpler has
to be far better, as where something rare was cut off, or surely so.

A few samples need not have what is rare. Where those that were held back show far more noise than
they did, the question is asked of these again; what is simpler must be so much better that it does
not matter to the verdict who chose.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from anybit.quantization.certainty import FEWEST, is_surely_less
from anybit.quantization.choices import Choice
from anybit.quantization.judging import FewVerdict
from anybit.quantization.placement import Source
from anybit.quantization.verdict import Verdict
from anybit.text import counted

Choices = Mapping[Source, Choice]

_SIMPLER = (
    ("rounding and biases", "weights rounded to nearest"),
    ("ranges, smoothing, rounding and biases", "whole ranges, and weights rounded to nearest,"),
)
# By how many dB what is simpler has to be better. On few samples, which choices were made by, it
# may be worse: by so many over the square of their number, and no more than the last.
_BETTER, _WORSE, _MOST = 0.1, 72.0, 2.0
# So many dB are far. So much worse than the few the others have to be, and what is simpler so much
# better by them.
_FAR = 3.0


def best(choices: Choices, judged: Callable[[Choices], Verdict]) -> tuple[Choices, str | None]:
    """The choices, or simpler ones that add no more noise, and what is to be said of that.

    Args:
        choices: All choices.
        judged: What becomes of the outputs with choices.
    """
    found, said = choices, None
    others = _simpler(choices)
    kept = judged(choices) if others else None
    first = least = _worth(kept) if kept else None
    for what, instead, simpler in others:
        verdict = judged(simpler)
        worth, samples = _worth(verdict), verdict.samples
        if worth is None or first is None or least is None:
            break
        better = worth > least + _BETTER - min(_WORSE / samples**2, _MOST)
        far = worth >= least + _FAR
        if better and (far or not _by_chance(verdict, kept)):
            found, kept, least = simpler, verdict, max(least, worth)
            said = (
                f"Choices of {what} were dropped: on {counted(samples, 'sample')} "
                f"{instead} give {_shown(worth, verdict)}, and they {_shown(first, verdict)}"
                f"{', which so few do not prove' if worth < first else ''}."
            )
    return found, said


def _by_chance(simpler: Verdict, kept: Verdict | None) -> bool:
    """Whether what is simpler may be no better than what is kept, by how much samples differ; few
    are asked for no more than that it is."""
    if not (isinstance(simpler, FewVerdict) and isinstance(kept, FewVerdict)):
        return False
    return simpler.samples >= FEWEST and not is_surely_less(simpler.noises, kept.noises)


def outdone(
    choices: Choices, few: Verdict, held: Verdict, judged: Callable[[Choices], Verdict]
) -> tuple[Choices | None, str | None]:
    """Simpler choices that do far better on what was held back, and what is to be said of that.

    Args:
        choices: All choices.
        few: What was found by a few samples for those that were kept.
        held: What is found by those that were held back.
        judged: The same for other choices.
    """
    expected, first = _worth(few), _worth(held)
    if expected is None or first is None or first > expected - _FAR:
        return None, None
    found, said, least = None, None, first
    for what, instead, simpler in _simpler(choices):
        verdict = judged(simpler)
        worth = _worth(verdict)
        if worth is not None and worth > least + _FAR:
            found, least = simpler, worth
            said = (
                f"Choices of {what} were dropped: on the {counted(verdict.samples, 'sample')} held "
                f"back {instead} give {_shown(worth, verdict)}, and they {_shown(first, verdict)}."
            )
    return found, said


def _simpler(choices: Choices) -> list[tuple[str, str, Choices]]:
    """What is dropped, what there is instead, and the choices that are left, more and more."""
    most = max((len(each.simpler) for each in choices.values()), default=0)
    return [
        (what, instead, {source: _at(choice, level) for source, choice in choices.items()})
        for level, (what, instead) in enumerate(_SIMPLER[:most])
    ]


def _at(choice: Choice, level: int) -> Choice:
    """What is left of a choice; all of it where nothing was chosen."""
    simpler = choice.simpler[: level + 1]
    return replace(simpler[-1], tried=choice.tried) if simpler else choice


def _worth(verdict: Verdict) -> float | None:
    """How good the outputs are: in dB, or in per cent where none is a float."""
    if verdict.sqnr is None:
        return None if verdict.agreement is None else 100 * verdict.agreement
    return verdict.sqnr


def _shown(worth: float, verdict: Verdict) -> str:
    if math.isinf(worth):
        return "nothing finite" if worth < 0 else "the same"
    return f"{worth:.1f} dB" if verdict.sqnr is not None else f"{worth:.1f} % agreement"
