# SPDX-License-Identifier: Apache-2.0
"""`diff`: run two sides and compare their tensors."""

from collections.abc import Callable, Mapping, Sequence

import numpy.typing as npt

from anybit.comparison.difference import compare_sides
from anybit.comparison.feeds import (
    Rows,
    pair_inputs,
    select_feeds_of_a,
    select_feeds_of_b,
    unify_inputs,
)
from anybit.comparison.measure import Tolerance
from anybit.comparison.results import Difference
from anybit.comparison.sides.network import LoadedNetwork, Side, load_recorded
from anybit.comparison.sides.runners import capture, check_runner
from anybit.data.random_inputs import (
    describe_random_inputs,
    generate_random_inputs,
    override_shapes,
    report_assumed_sizes,
)
from anybit.errors import DataError, OptionError
from anybit.inputs import Feeds, match_arrays
from anybit.onnx import Source
from anybit.onnx.graph.constants import Array

# The share of the time that one run takes. Most is spent on comparing tensors.
_SHARE_OF_A_RUN = 0.15


def diff(
    a: Source,
    b: Source | Mapping[str, npt.ArrayLike] | None = None,
    inputs: Feeds | None = None,
    *,
    runners: tuple[str, str] | None = None,
    steps: float = 0,
    atol: float = 0,
    progress: Callable[[float], None] | None = None,
) -> Difference:
    """Compare all tensors of two models, of one model on two runners, or with recorded tensors.

    Both sides get the same inputs. The outputs of all nodes of the main graph are compared, folded
    constants included; and stored constants of the same name, if there are two models.
    Tensors are matched by name; else as outputs, or by position among tensors of the same shape,
    type and kind of node.

    Args:
        a: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        b: Another model; None for a again; or recorded arrays by tensor name. These may be a few of
            the tensors, and `y` stands for the output of a model with one output.
        inputs: One array per input of a by name, or the array of the only input. The default is
            normally distributed numbers from seed 0, or the inputs among recorded tensors (`x` for
            the only input). Inputs of b are matched by name, else by position. If there are more
            rows than the models take, the first ones are run; a note of the result reports it.
        runners: The runners of a and b, names in `RUNNERS`. The default is `anybit` for both, or
            `anybit` and `onnxruntime` for one model. Recorded tensors need no second runner.
        steps: Elements that differ by up to this many quantization steps count as equal. A tensor
            without a step then counts as different only if all its inputs are equal, or if one of
            them is different.
        atol: Elements that differ by no more than this count as equal.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ModelError: A model cannot be read or run, or no tensors can be compared.
        DataError: The inputs do not fit.
        OptionError: A runner is unknown, or `steps` or `atol` is not a number >= 0.
        DependencyError: The package of a runner is missing.

    >>> import onnx
    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 13]> g (float[4] x) => (float[4] y) {y = Relu(x)}'
    ... )
    >>> diff(model, runners=("anybit", "reference")).equal
    True
    """
    first = LoadedNetwork(a)
    second: LoadedNetwork | Side = first
    if b is not None:
        second = load_recorded(b) if isinstance(b, Mapping) else LoadedNetwork(b)
    if runners is None:
        runners = ("anybit", "onnxruntime" if b is None else "anybit")
    return compare(first, second, inputs, runners, Tolerance(steps, atol), progress)


def compare(
    first: LoadedNetwork,
    second: LoadedNetwork | Side,
    inputs: Feeds | None,
    runners: tuple[str, str],
    tolerance: Tolerance,
    progress: Callable[[float], None] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Difference:
    """Compare networks, or a network and recorded tensors, as `diff` does.

    `shapes` are the shapes of random inputs.
    """
    for name, value in (("steps", tolerance.steps), ("atol", tolerance.atol)):
        if not value >= 0:
            raise OptionError(f"{name} must be a number >= 0, got {value}")
    report = progress or (lambda share: None)
    record = second if isinstance(second, Side) else None
    for runner in runners[:1] if record is not None else runners:
        check_runner(runner)
    other = first if isinstance(second, Side) else second
    if inputs is None and record is not None:
        inputs = _select_recorded_inputs(first, record)
    pairs = pair_inputs(first, other)
    common = override_shapes(unify_inputs(pairs), shapes or {})
    feeds, rows = (
        (generate_random_inputs(common), None)
        if inputs is None
        else select_feeds_of_a(common, inputs)
    )
    notes = [] if rows is None else [rows.note]
    if inputs is None:
        notes.append(describe_random_inputs(common))
    with report_assumed_sizes(common if inputs is None else ()):
        left = _describe_side(first, runners[0], feeds)
        report(_SHARE_OF_A_RUN)
        if record is None:
            right = _describe_side(other, runners[1], select_feeds_of_b(feeds, pairs, other.label))
        else:
            right = _select_first_rows(record, left, rows)
        report(2 * _SHARE_OF_A_RUN)
    ran = 2 * _SHARE_OF_A_RUN
    difference = compare_sides(
        left,
        right,
        tolerance,
        tuple(notes),
        lambda share: report(ran + (1 - ran) * share),
    )
    report(1.0)
    return difference


def _describe_side(network: LoadedNetwork, runner: str, feeds: Mapping[str, Array]) -> Side:
    arrays = capture(runner, network.model, feeds, network.label)
    label = f"{network.label} ({runner})"
    return Side(label, network.constants() | arrays, network, feeds)


def _select_recorded_inputs(network: LoadedNetwork, record: Side) -> dict[str, Array]:
    names = [tensor.name for tensor in network.inputs]
    # A single recorded array is an output rather than the input.
    inputs = match_arrays(names, record.arrays, "x", only=False)
    missing = [name for name in names if name not in inputs]
    if missing:
        raise DataError(
            f"the recorded tensors do not hold the model's input {', '.join(missing)}: pass inputs"
        )
    return inputs


def _select_first_rows(record: Side, side: Side, rows: Rows | None) -> Side:
    """Return the recorded tensors, cut to the rows that were run."""
    if rows is None:
        return record
    arrays = {
        name: array
        if name in side.arrays and array.shape == side.arrays[name].shape
        else rows.of(array)
        for name, array in record.arrays.items()
    }
    return Side(record.label, arrays)
