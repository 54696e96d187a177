# SPDX-License-Identifier: Apache-2.0
"""What is legal in a call of an operator, but seldom meant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remark:
    """One observation: `problem` with the value, `remedy` with what to do.

    An error is what no user can have meant; a warning may be meant.
    """

    problem: str
    remedy: str
    error: bool = False
