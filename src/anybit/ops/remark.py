# SPDX-License-Identifier: Apache-2.0
"""Remarks on valid but unusual calls of operators.

Parameters that the graph computes are missing in the call passed to `remarks`; the others are in
their domain.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remark:
    """One observation: `problem` with the value, and `remedy`.

    `code` is a short name that is stable across versions. An error is certainly unintended; a
    warning may be intended. `beyond` restricts the remark to codes larger than this: a constant
    without such codes is fine.
    """

    code: str
    problem: str
    remedy: str
    error: bool = False
    beyond: int | None = None
