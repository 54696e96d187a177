# SPDX-License-Identifier: Apache-2.0
"""Some of what a quantizer is given, kept to try scales on."""

import torch

# As many batches as are kept at most, and every which of them decides.
_MOST, _PERIOD = 18, 3


class Samples:
    """Tensors that are spread evenly over all that were added, in bounded memory.

    Rows of batches are kept, at least one of each, and the two rows with the largest magnitudes.

    Args:
        memory: Bytes for all of them, or more where two rows take more.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._seen, self._every = 0, 1
        self._has_rows = False
        self._kept: list[tuple[int, torch.Tensor]] = []
        self._extremes: list[tuple[float, torch.Tensor]] = []

    def add(self, x: torch.Tensor, has_rows: bool) -> None:
        """Look at one tensor; `has_rows` says whether its first axis may be cut."""
        self._has_rows = has_rows
        if self._seen % self._every == 0:
            step = max(1, -(-x.nbytes * _MOST // self._memory))
            self._kept.append((self._seen, (x[::step] if has_rows else x).clone()))
        self._seen += 1
        while len(self._kept) > _MOST or (len(self._kept) > 2 and self.nbytes > self._memory):
            self._every *= 2
            self._kept = [each for each in self._kept if each[0] % self._every == 0]
        rows = x.abs().flatten(1).amax(dim=1) if has_rows else x.abs().amax()[None]
        largest = list(self._extremes)
        for magnitude, row in zip(*rows.topk(min(2, len(rows))), strict=True):
            largest.append((float(magnitude), x[row : row + 1] if has_rows else x))
        largest.sort(key=lambda each: -each[0])
        # What is kept must not change with the tensor that it lies in, nor keep that alive.
        self._extremes = [(each, row.clone()) for each, row in largest[:2]]

    @property
    def nbytes(self) -> int:
        """The memory that is taken for batches."""
        return sum(each.nbytes for _, each in self._kept)

    def divided(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Samples to choose by, and others to decide by, as far as there are several."""
        kept = [each for _, each in self._kept]
        if len(kept) == 1 and self._has_rows:
            parts = [kept[0][place::_PERIOD] for place in range(_PERIOD)]
            kept = [part for part in parts if len(part)]
        second = kept[1::_PERIOD] or kept
        first = [each for place, each in enumerate(kept) if place % _PERIOD != 1]
        extremes = [row for _, row in self._extremes]
        return [*first, *extremes[:1]], [*second, *extremes[-1:]]
