# SPDX-License-Identifier: Apache-2.0
"""Remark on layers in branches that no sample runs."""

from anybit.ptq.search.candidates import QuantizedCandidate
from anybit.text import escape_name, join_names


def describe_idle_branches(candidate: QuantizedCandidate) -> tuple[str, ...]:
    """Return the remark on layers whose activations stay float, because no sample runs them."""
    names = {
        layer.name: None
        for activation in candidate.plan.activations
        if candidate.params[activation].grid is None
        for layer, _ in activation.readers
    }
    if not names:
        return ()
    did = "layers read" if len(names) > 1 else "layer reads"
    return (
        f"{len(names)} {did} floats, since no sample runs a branch: "
        f"{join_names(map(escape_name, names))}. "
        "Give data that do.",
    )
