# SPDX-License-Identifier: Apache-2.0
"""Compare a compiled model, as its file has it, with the float graph on the arrays of a user."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from anybit.cli._console import percentage, stdout
from anybit.cli._inputs import gather_inputs
from anybit.cli.diff import show
from anybit.comparison.compare import compare
from anybit.comparison.measure import Tolerance
from anybit.comparison.sides.network import Network, recorded
from anybit.compilation import Compiled
from anybit.errors import ModelError
from anybit.onnx.cleaning import clean


def verify(
    model: Path, compiled: Compiled, output: Path, inputs: Sequence[str], *, quiet: bool
) -> bool:
    """Whether all tensors of codes and all outputs of the file that was written are those of the
    float graph; say which not."""
    network = Network(model)
    feeds = gather_inputs(network, inputs)
    with suppress(ModelError):  # all rows at once, also where a file fixes their number
        network = Network(clean(model, batch="dynamic", keep_quantizers=True))
    network.label = str(model)
    with percentage("Verifying") as advance:
        results = recorded(compiled.saved(output).run(feeds), str(output))
        found = compare(network, results, feeds, ("anybit", ""), Tolerance(0, 0), advance)
    if not quiet:
        stdout().print(Text("Verified against the float graph:"))
        show(found, show_all=True)
    return found.equal
