# SPDX-License-Identifier: Apache-2.0
"""Division of samples into calibration samples and held-out samples."""

from hashlib import sha256

_HELD_OUT_ONE_OF = 4
"""One of n samples is held out, to evaluate the result on."""


def is_held_out(index: int) -> bool:
    """Return whether a sample is held out, by its index in the dataset."""
    return is_selected(index, _HELD_OUT_ONE_OF)


def is_selected(index: int, period: int) -> bool:
    """Return whether an index is the selected one of its group of `period` indices.

    It is the second of the first group. In other groups a hash selects it, because data often have
    a period of their own.
    """
    group, offset = divmod(index, period)
    return offset == (int.from_bytes(hash_index(group)[:8], "little") if group else 1) % period


def hash_index(index: int) -> bytes:
    """Return the hash of an index: a sort key of a random order, equal on all machines."""
    return sha256(index.to_bytes(8, "little")).digest()
