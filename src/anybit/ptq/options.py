# SPDX-License-Identifier: Apache-2.0
"""Options of `quantize`, checked before a file is read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anybit.errors import OptionError
from anybit.metrics.thresholds import QualityThresholds, parse_thresholds
from anybit.ptq.budget import Budget, parse_budget
from anybit.ptq.config import QuantizeConfig, get_preset
from anybit.ptq.fpga_targets import check_target
from anybit.ptq.plan import FLOAT, SpecOptions, is_small_integer, parse_specs
from anybit.quant_types.spec import QuantSpec, parse_quant_spec
from anybit.quant_types.suggestions import describe_unknown

_POWER_OF_TWO = "power-of-two"
_DEFAULT_ACTIVATIONS = "uint8"
_DEFAULT_WEIGHTS = "int8"
_AUTO = "auto"
"""Activations with `_DEFAULT_ACTIVATIONS`, or with dynamic scales where these pay."""


@dataclass(frozen=True)
class QuantizeOptions:
    """Checked options of `quantize`.

    Attributes:
        specs: The specs of weights, activations and outputs.
        dynamic: The spec of dynamic scales of activations to try; None for none.
        integer_only: Whether elementwise and pooling operators are quantized, too.
        target: The FPGA compiler that is to support the result; None for none.
        budget: The budget of the mixed-precision search; None for none.
        sensitivity: Whether the effect of each layer on the outputs is measured.
        config: The thresholds of the search.
        thresholds: The figures below which the result fails.
    """

    specs: SpecOptions
    dynamic: QuantSpec | None
    integer_only: bool
    target: str | None
    budget: Budget | None
    sensitivity: bool
    config: QuantizeConfig
    thresholds: QualityThresholds


def parse_options(
    *,
    weights: str | None,
    activations: str | None,
    layers: Mapping[str, str] | None,
    keep: Sequence[str],
    outputs: str | None,
    states: Mapping[str, str] | None,
    scales: str | None,
    integer_only: bool,
    target: str | None,
    budget: str | None,
    sensitivity: bool,
    effort: str,
    cache: str | os.PathLike[str] | None,
    fail_below: str | None,
    has_data: bool,
) -> QuantizeOptions:
    """Check the options of `quantize`, and parse those that are text.

    Raises:
        OptionError: An option has an unsupported value, or two contradict each other.
    """
    if scales not in (None, _POWER_OF_TWO):
        raise OptionError(
            f"scales={scales!r}: {describe_unknown('value', str(scales), [_POWER_OF_TWO])}"
        )
    check_target(target)
    if cache is not None and Path(cache).exists() and not Path(cache).is_dir():
        raise OptionError(f"cache={os.fspath(cache)!r} is a file; name a folder or a new path")
    limit = _parse_budget(budget, has_data=has_data, integer_only=integer_only)
    dynamic = None
    if activations == _AUTO:
        contradictions = {
            "integer_only=True": integer_only,
            f"target={target!r}": target is not None,
            f"scales={scales!r}": scales is not None,
            f"budget={budget!r}": budget is not None,
            f"effort={effort!r}": not get_preset(effort).searches,
        }
        dynamic = _parse_auto(contradictions, has_data=has_data)
        activations = _DEFAULT_ACTIVATIONS
    activations = activations or (_DEFAULT_ACTIVATIONS if has_data or integer_only else FLOAT)
    weights = weights or _DEFAULT_WEIGHTS
    specs = parse_specs(weights, activations, layers or {}, keep, outputs, scales is not None)
    _check_outputs(specs.outputs, states, has_data=has_data, integer_only=integer_only)
    return QuantizeOptions(
        specs=replace(specs, states=states or {}),
        dynamic=dynamic,
        integer_only=integer_only,
        target=target,
        budget=limit,
        sensitivity=sensitivity,
        config=get_preset(effort),
        thresholds=parse_thresholds(fail_below, has_data=has_data),
    )


def _parse_budget(budget: str | None, *, has_data: bool, integer_only: bool) -> Budget | None:
    """Return the budget of the mixed-precision search, checked; None for none."""
    if budget is None:
        return None
    limit = parse_budget(budget)
    if not has_data:
        raise OptionError(
            f"budget={limit.text!r} needs data, to measure the outputs: add data='FILE.npz'"
        )
    if integer_only:
        raise OptionError(
            f"budget={limit.text!r} may take more than 8 bits, which integer_only=True excludes; "
            "leave one of them out"
        )
    return limit


def _parse_auto(contradictions: Mapping[str, bool], *, has_data: bool) -> QuantSpec:
    """Return the spec of dynamic scales that `auto` tries.

    Args:
        contradictions: Options that exclude it, and whether they are in use.
        has_data: Whether there are data.
    """
    if not has_data:
        raise OptionError(
            f"activations={_AUTO!r} needs data, to compare static and dynamic scales: add "
            "data='FILE.npz', or use activations='uint8 dynamic'"
        )
    for option, is_set in contradictions.items():
        if is_set:
            raise OptionError(
                f"activations={_AUTO!r} cannot be combined with {option}; use "
                f"activations={_DEFAULT_ACTIVATIONS!r}"
            )
    return parse_quant_spec(f"{_DEFAULT_ACTIVATIONS} dynamic", "activations", "activations=")


def _check_outputs(
    outputs: QuantSpec | None,
    states: Mapping[str, str] | None,
    *,
    has_data: bool,
    integer_only: bool,
) -> None:
    """Check that the spec of the outputs suits the data, the states and `integer_only`."""
    if outputs and not outputs.dynamic and not has_data:
        raise OptionError(f"outputs={outputs.text!r} needs calibration data: add data='FILE.npz'")
    if states and outputs is None:
        raise OptionError(
            f"states[{next(iter(states))!r}]: the outputs are float; add outputs='int8'"
        )
    if states and outputs and outputs.dynamic:
        raise OptionError(
            f"states[{next(iter(states))!r}]: outputs={outputs.text!r} has dynamic scales; "
            "use outputs='int8'"
        )
    if outputs and integer_only and not is_small_integer(outputs):
        raise OptionError(
            f"outputs={outputs.text!r}: with integer_only=True, outputs must be integers of "
            "at most 8 bits with static scales, such as int8"
        )
