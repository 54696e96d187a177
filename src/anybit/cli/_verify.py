# SPDX-License-Identifier: Apache-2.0
"""Comparison of a compiled model, as saved, with the float graph on given inputs."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.text import Text

from anybit.cli._console import get_stdout, show_percentage
from anybit.cli._inputs import gather_inputs
from anybit.cli.diff import show
from anybit.comparison.compare import compare
from anybit.comparison.measure import Tolerance
from anybit.comparison.results import Difference, TensorDifference
from anybit.comparison.sides.network import LoadedNetwork, load_recorded
from anybit.compiler.compiled import CompiledModel
from anybit.compiler.program.open_bits import is_open
from anybit.errors import ModelError
from anybit.inputs import bind_batches, require_elements
from anybit.onnx.analysis.ranges import describe_violation, make_input_values
from anybit.onnx.cleaning import clean
from anybit.onnx.graph.constants import Array
from anybit.quant_types.layer_info import Guarantee
from anybit.text import escape_name, format_count, join_names

_LAST_BITS = 1e-5
"""Effect of the order of float32 sums, relative to the largest value of a tensor."""
_LARGEST_STEP = 0.25
"""The same for a step of a code of few bits, which is one of many factors of a sum."""
_FEW_STEPS = 30.0
"""Least SQNR in decibels where a few codes differ by a step."""


def read_verification_inputs(model: Path, options: Sequence[str]) -> dict[str, Array]:
    """Read the arrays that the options name, before any work.

    Raises:
        DataError: An array is missing, has no elements, or does not fit the model.
    """
    network = LoadedNetwork(model)
    feeds, _ = bind_batches(network.inputs, gather_inputs(network, options, "--verify"))
    require_elements(network.inputs, feeds)
    return feeds


def verify(
    model: Path,
    compiled: CompiledModel,
    output: Path,
    feeds: dict[str, Array],
    ranges: Mapping[str, str],
    *,
    quiet: bool,
) -> bool:
    """Return whether the saved file reproduces the integer tensors and outputs of the float graph.

    The last bits of floats after bounded layers may differ. Prints what differs unless quiet.
    """
    network = LoadedNetwork(model)
    with suppress(ModelError):  # all rows at once, also where a file fixes their number
        network = LoadedNetwork(clean(model, batch="dynamic", keep_quantizers=True))
    network.label = str(model)
    codes = compiled.codes
    with show_percentage("Verifying") as advance:
        arrays = compiled.rename_codes(compiled.saved(output).run(feeds))
        difference = _compare(network, arrays, feeds, output, advance)
        merged = _find_merged_shapes(difference, codes)
        if merged:
            arrays |= {name: arrays[name].reshape(shape) for name, shape in merged.items()}
            difference = _compare(network, arrays, feeds, output, advance)
    rounded = _find_tensors_after_bounded_layers(network, compiled)
    steps = _find_steps(network, compiled, rounded)
    shifted = _find_tensors_after_open_functions(network, compiled)
    faults = [
        tensor
        for tensor in difference.different
        if not (tensor.name in shifted and _has_few_steps(tensor))
        and (
            tensor.name in codes
            or not (_has_last_bits(tensor, rounded) or _has_steps(tensor, steps.get(tensor.name)))
        )
    ]
    if not quiet:
        show(difference, show_all=True)
        verified = "Not verified" if faults else "Verified"
        compared = _count_compared_codes(difference, codes)
        sentence = f"{verified}: {compared}; {_describe_others(difference, codes, faults)}."
        if not faults and any(tensor.name in codes for tensor in difference.different):
            sentence += (
                " A code may differ by a step after functions whose last bits ONNX leaves open: "
                "Sigmoid, GELU, Softmax, LayerNormalization and means of floats."
            )
        risky = [tensor for tensor in faults if tensor.name in codes & rounded]
        if risky:
            sentence += (
                " After a bounded layer float32 itself may give other codes, as in "
                f"{_join_names(risky)}: at the accumulators that --report lists."
            )
        if faults:
            inputs = [value for value in network.model.graph.inputs if not value.is_initializer()]
            abstract_values = make_input_values(ranges, inputs).items()
            reasons = (
                describe_violation(name, feeds[name], value) for name, value in abstract_values
            )
            sentence += "".join(f" But {reason}." for reason in reasons if reason)
        style = "bold" if faults else "green"
        get_stdout().print(Text(sentence, style=style), soft_wrap=True)
    return not faults


def _compare(
    network: LoadedNetwork,
    arrays: Mapping[str, Array],
    feeds: dict[str, Array],
    output: Path,
    advance: Callable[[float], None],
) -> Difference:
    results = load_recorded(arrays, str(output))
    return compare(network, results, feeds, ("anybit", ""), Tolerance(0, 0), advance)


def _find_merged_shapes(
    difference: Difference, codes: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes in the float graph of the codes whose leading axes the compiler merged."""
    return {
        tensor.other_name: tensor.shape
        for tensor in difference.different
        if tensor.name in codes
        and len(tensor.other_shape) == 2 < len(tensor.shape)
        and tensor.other_shape == (math.prod(tensor.shape[:-1]), tensor.shape[-1])
    }


def _has_last_bits(tensor: TensorDifference, rounded: Collection[str]) -> bool:
    """Return whether only the rounding of sums makes a tensor differ."""
    return tensor.name in rounded and tensor.relative <= _LAST_BITS


def _has_steps(tensor: TensorDifference, step: float | None) -> bool:
    """Return whether steps of codes explain a difference: the largest one, and the mean square."""
    if step is None:
        return False
    return tensor.relative <= step and tensor.sqnr >= -20 * math.log10(step)


def _has_few_steps(tensor: TensorDifference) -> bool:
    """Return whether steps of few codes, or what follows from them, explain a difference."""
    return tensor.relative <= _LARGEST_STEP and tensor.sqnr >= _FEW_STEPS


def _find_tensors_after_bounded_layers(
    network: LoadedNetwork, compiled: CompiledModel
) -> frozenset[str]:
    """Return the tensors after bounded layers, up to and including the next integer tensors."""
    layers = compiled.report.layers
    sums = {layer.output for layer in layers if layer.guarantee is Guarantee.BOUNDED}
    codes = compiled.codes
    tensors: set[str] = set()
    for node in network.model.graph:
        read = {value.name or "" for value in node.inputs if value is not None}
        made = {value.name or "" for value in node.outputs}
        if made & sums or any(name in tensors and name not in codes for name in read):
            tensors |= made
    return frozenset(tensors)


def _find_tensors_after_open_functions(
    network: LoadedNetwork, compiled: CompiledModel
) -> frozenset[str]:
    """Return the codes after functions whose last bits ONNX leaves open, and all tensors after."""
    programs, codes = compiled.report.programs, compiled.codes
    functions = {
        layer.output
        for layer in compiled.report.layers
        if layer.place and is_open(programs[layer.place[0]].instructions[layer.place[1]])
    }
    opened: set[str] = set()
    shifted: set[str] = set()
    for node in network.model.graph:
        read = {value.name or "" for value in node.inputs if value is not None}
        made = {value.name or "" for value in node.outputs}
        if read & shifted or (read & opened and made & codes):
            shifted |= made
        elif made & functions or read & opened:
            opened |= made
    return frozenset(shifted)


def _find_steps(
    network: LoadedNetwork, compiled: CompiledModel, rounded: Collection[str]
) -> dict[str, float]:
    """Return the tensors after codes with computed scales that follow rounded sums.

    Such a code may differ by a step: the largest number has 2^(bits - 1) steps. It is one of many
    factors of a sum.
    """
    steps = {
        layer.output: min(2.0 ** (1 - layer.layer.input_bits), _LARGEST_STEP)
        for layer in compiled.report.layers
        if layer.layer.dynamic and layer.guarantee is not None
    }
    codes, tolerances = compiled.codes, dict[str, float]()
    for node in network.model.graph:
        read = [value.name or "" for value in node.inputs if value is not None]
        floats = [name for name in read if name not in codes]
        largest = max((tolerances.get(name, 0.0) for name in floats), default=0.0)
        for name in (value.name or "" for value in node.outputs):
            own = steps.get(name, 0.0) if any(x in rounded for x in floats) else 0.0
            if max(largest, own):
                tolerances[name] = max(largest, own)
    return tolerances


def _count_compared_codes(difference: Difference, codes: Collection[str]) -> str:
    seen = [tensor for tensor in difference.tensors if tensor.name in codes]
    differing = [tensor for tensor in difference.different if tensor.name in codes]
    compared = f"{len(seen)} of {format_count(len(codes), 'tensor')} of codes compared"
    if differing:
        return f"{compared}, but {_differ(differing)}"
    return f"{compared}, all equal" if seen else compared


def _describe_others(
    difference: Difference, codes: Collection[str], faults: Collection[TensorDifference]
) -> str:
    differing = [tensor for tensor in difference.different if tensor.name not in codes]
    wrong = [tensor for tensor in differing if tensor in faults]
    if wrong:
        return _differ(wrong)
    if differing:
        largest = max(tensor.relative for tensor in differing)
        places = "in the last bits"
        if largest > _LAST_BITS:
            places += ", and by steps of activations whose scales are computed"
        return (
            f"{_differ(differing)} {places}, by at most {largest:.1g} of the largest "
            "value. This is expected after bounded layers: float32 rounds their sums, integers do "
            "not"
        )
    return "all else is equal"


def _differ(tensors: Sequence[TensorDifference]) -> str:
    return f"{_join_names(tensors)} {'differs' if len(tensors) == 1 else 'differ'}"


def _join_names(tensors: Sequence[TensorDifference]) -> str:
    return join_names(escape_name(tensor.name) for tensor in tensors)
