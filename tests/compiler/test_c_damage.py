# SPDX-License-Identifier: Apache-2.0
"""Damaged programs: C is refused with an error of this package, or equals the reference."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_batches import Case, make_case, run_batch
from fuzz_programs import EXTREMES, MOST_MEMORY, MOST_WORK
from programs import FromGenerator, inputs_for, make_integer_program, make_program

from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network
from anybit.errors import AnybitError, ModelError

CHECKED = ("gcc", "-std=c99", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
DAMAGES, MOST_COMPILED = 40, 12
SEEDS = (*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12)))


def damage(value: Any, rng: np.random.Generator, spare: Sequence[Any]) -> Any:
    """Return a value with one number, element or record of it changed, moved or removed."""
    if isinstance(value, int):
        return int(rng.choice([*EXTREMES[:10], value - 8, value - 1, value + 1, 2 * value]))
    if isinstance(value, np.ndarray):
        return damage_array(value, rng)
    if isinstance(value, tuple):
        if not value:
            return value
        place, records = int(rng.integers(len(value))), list(value)
        match rng.integers(6):
            case 0:
                del records[place]
            case 1:
                records[place] = value[rng.integers(len(value))]
            case _:
                records[place] = damage(records[place], rng, spare)
        return tuple(records)
    assert is_dataclass(value)
    if type(value) in p.EPILOGUES and rng.integers(3) == 0:
        return spare[rng.integers(len(spare))]
    name = rng.choice([field.name for field in fields(value)])
    return replace(value, **{name: damage(getattr(value, name), rng, spare)})  # type: ignore[type-var]


def damage_array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an array with an element changed, some removed, or all twice."""
    if not array.size:
        return np.ones(1, array.dtype)
    changed = array.copy()
    match rng.integers(4):
        case 0:
            return changed[: rng.integers(array.size)]
        case 1:
            return np.concatenate([changed, changed])
        case 2:
            changed[rng.integers(array.size)] = changed[rng.integers(array.size)]
        case _ if array.dtype == np.float32:
            changed[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf, 0, 1e38, -3])
        case _:
            limits = np.iinfo(array.dtype)
            extreme = rng.choice([limits.min, limits.max, 0, 1])
            changed[rng.integers(array.size)] = extreme
    return changed


def is_small(program: p.Program) -> bool:
    """Return whether a program runs in little time and memory; refuse it if it is damaged."""
    described = Network(program).describe()
    work = sum(stage["multiplications"] for stage in described["stages"])
    return bool(work <= MOST_WORK >> 4 and described["memory"] <= MOST_MEMORY >> 4)


def make_damaged_case(program: p.Program, seed: int, *, codes: bool) -> Case | None:
    """Return a damaged program in C; None if it is refused, or large."""
    try:
        if not is_small(program):
            return None
    except ValueError:
        with pytest.raises(ModelError, match="damaged"):
            emit_c(program, "net", codes=codes)
        return None
    try:
        emit_c(program, "net", codes=codes, layout="speed")
        return make_case(program, f"n{seed}", inputs_for(program, 2, seed), codes=codes)
    except AnybitError:
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_programs_are_refused_or_equal_reference(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    choices = FromGenerator(rng)
    codes = bool(seed % 3 == 1)
    sound = make_integer_program(choices, codes=codes) if seed % 2 else make_program(choices)
    others = [make_program(FromGenerator(np.random.default_rng(other))) for other in range(8)]
    epilogues = [
        at.epilogue for other in others for at in other.instructions if isinstance(at, p.Product)
    ]
    cases = []
    for number in range(DAMAGES):
        program = sound
        for _ in range(rng.integers(1, 3)):
            program = damage(program, rng, epilogues)
        case = make_damaged_case(program, 1000 * seed + number, codes=codes)
        if case is not None and len(cases) < MOST_COMPILED:
            cases.append(case)
    if cases:
        assert run_batch(cases, CHECKED, tmp_path) == []
