# SPDX-License-Identifier: Apache-2.0
"""What is legal in a call of an operator, but seldom meant.

An operator's `remarks` may be given a call that lacks parameters: those that only a run will tell.
Those that are there are in their domain.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remark:
    """One observation: `problem` with the value, `remedy` with what to do.

    `code` is a short name that stays the same from version to version. An error is what no user
    can have meant; a warning may be meant. Where `beyond` is given, it is of codes that are larger
    than this, and nothing is wrong with a constant that has none.
    """

    code: str
    problem: str
    remedy: str
    error: bool = False
    beyond: int | None = None
