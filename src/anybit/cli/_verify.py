# SPDX-License-Identifier: Apache-2.0
"""Compare a compiled model, as its file has it, with the float graph on the arrays of a user."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from anybit.cli._console import percentage, stdout
from anybit.cli._inputs import gather_inputs
from anybit.cli.diff import show
from anybit.comparison.compare import compare
from anybit.comparison.measure import Tolerance
from anybit.comparison.results import Difference, TensorDifference
from anybit.comparison.sides.network import Network, recorded
from anybit.compiler.compiled import Compiled
from anybit.errors import ModelError
from anybit.inputs import Array, fitted
from anybit.onnx.analysis.ranges import input_values, violation
from anybit.onnx.cleaning import clean
from anybit.quant_types.layer_info import Guarantee
from anybit.text import counted, listed, shown

_LAST_BITS = 1e-5
"""Of the largest value of a tensor: what float32 may make of another order of summation."""


def verification_inputs(model: Path, options: Sequence[str]) -> dict[str, Array]:
    """The arrays that the options name, as the model takes them: known before the work.

    Raises:
        ModelError: One that is missing, or that does not fit the model.
    """
    network = Network(model)
    return fitted(network.inputs, gather_inputs(network, options))[0]


def verify(
    model: Path,
    compiled: Compiled,
    output: Path,
    feeds: dict[str, Array],
    ranges: Mapping[str, str],
    *,
    quiet: bool,
) -> bool:
    """Whether the file that was written gives the float graph's tensors of codes and outputs: these
    but for the last bits of floats behind bounded layers. Says which differ."""
    network = Network(model)
    with suppress(ModelError):  # all rows at once, also where a file fixes their number
        network = Network(clean(model, batch="dynamic", keep_quantizers=True))
    network.label = str(model)
    with percentage("Verifying") as advance:
        results = recorded(compiled.saved(output).run(feeds), str(output))
        found = compare(network, results, feeds, ("anybit", ""), Tolerance(0, 0), advance)
    codes = compiled.codes
    rounded = _behind_rounded_sums(network, compiled)
    faults = [
        each
        for each in found.different
        if each.name in codes or each.name not in rounded or not each.relative <= _LAST_BITS
    ]
    if not quiet:
        show(found, show_all=True)
        verified = "Not verified" if faults else "Verified"
        sentence = f"{verified}: {_codes(found, codes)}; {_others(found, codes, faults)}."
        risky = [each for each in faults if each.name in codes & rounded]
        if risky:
            sentence += (
                " Behind a bounded layer float32 itself may give other codes, as in "
                f"{_names(risky)}: at the accumulators that --report lists."
            )
        if faults:
            inputs = [value for value in network.model.graph.inputs if not value.is_initializer()]
            known = input_values(ranges, inputs).items()
            why = filter(None, (violation(name, feeds[name], carrier) for name, carrier in known))
            sentence += "".join(f" But {each}." for each in why)
        style = "bold" if faults else "green"
        stdout().print(Text(sentence, style=style), soft_wrap=True)
    return not faults


def _behind_rounded_sums(network: Network, compiled: Compiled) -> frozenset[str]:
    """What is computed from bounded layers, up to the next tensors of codes, these included."""
    layers = compiled.report.layers
    sums = {layer.output for layer in layers if layer.guarantee is Guarantee.BOUNDED}
    codes = compiled.codes
    found: set[str] = set()
    for node in network.model.graph:
        read = {value.name or "" for value in node.inputs if value is not None}
        made = {value.name or "" for value in node.outputs}
        if made & sums or any(name in found and name not in codes for name in read):
            found |= made
    return frozenset(found)


def _codes(found: Difference, codes: Collection[str]) -> str:
    seen = [each for each in found.tensors if each.name in codes]
    differing = [each for each in found.different if each.name in codes]
    compared = f"{len(seen)} of {counted(len(codes), 'tensor')} of codes compared"
    if differing:
        return f"{compared}, of which {_differ(differing)}"
    return f"{compared}, all equal" if seen else compared


def _others(found: Difference, codes: Collection[str], faults: Collection[TensorDifference]) -> str:
    differing = [each for each in found.different if each.name not in codes]
    wrong = [each for each in differing if each in faults]
    if wrong:
        return _differ(wrong)
    if differing:
        largest = max(each.relative for each in differing)
        return (
            f"{_differ(differing)} in the last bits, by at most {largest:.1g} of the largest "
            "value, as floats behind bounded layers may: float32 rounds their sums, and integers "
            "do not"
        )
    return "all else is equal"


def _differ(tensors: Sequence[TensorDifference]) -> str:
    return f"{_names(tensors)} {'differs' if len(tensors) == 1 else 'differ'}"


def _names(tensors: Sequence[TensorDifference]) -> str:
    return listed(shown(each.name) for each in tensors)
