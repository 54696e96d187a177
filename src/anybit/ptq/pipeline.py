# SPDX-License-Identifier: Apache-2.0
"""From a float model to one of few bits."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from anybit.compiler.prepare.eligibility import INTEGER_ONLY
from anybit.data.dataset import Dataset, DataSource
from anybit.data.row_independence import make_independence_test
from anybit.errors import ModelError
from anybit.inputs import list_inputs
from anybit.metrics.thresholds import parse_thresholds
from anybit.onnx.files.origin import origin_of
from anybit.onnx.files.reader import Source as ModelSource
from anybit.onnx.files.reader import read_copy
from anybit.onnx.forms import Form
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import operators_in
from anybit.onnx.passes import (
    AskTypes,
    FoldBatchNorm,
    FoldConstants,
    InferShapes,
    LiftOpset,
    NameLayers,
    NameNodes,
    Normalize,
    Simplify,
    StandardLayout,
)
from anybit.onnx.preparation import apply, errors_named_after, inline
from anybit.onnx.process import relaxed_gc
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.parallel import open_executor
from anybit.ptq.algorithms.round_to_nearest import check_weights
from anybit.ptq.budget import Budget
from anybit.ptq.budget import parse_budget as parsed
from anybit.ptq.calibration.collect import decides_by_others
from anybit.ptq.calibration.macs import multiplications
from anybit.ptq.config import preset
from anybit.ptq.fpga_targets import check_target, for_target, taken_by
from anybit.ptq.graph.branches import separate_branches
from anybit.ptq.graph.precision import compute_in_float32
from anybit.ptq.graph.targets import find_targets
from anybit.ptq.layer_rows import Sizes, idle, row
from anybit.ptq.plan import FLOAT, Plan, plan
from anybit.ptq.remarks.constant_inputs import unchanging
from anybit.ptq.remarks.logarithms import logarithms
from anybit.ptq.remarks.non_finite import nonfinite
from anybit.ptq.result import QuantizationResult
from anybit.ptq.search.candidates import CandidateBuilder, Progress
from anybit.ptq.search.evaluate import outputs_of
from anybit.ptq.specs.dynamic_grid import DYNAMIC_GRID_OPSET
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat, IntegerFormat
from anybit.quant_types.suggestions import describe_unknown

_POWER_OF_TWO = "power-of-two"
_NOT_MEASURED = (
    "What each layer does to the outputs was not measured, which needs data and a float output."
)
_NOT_JUDGED = (
    "What each layer adds is not said: there are too few samples for some to have no part in its "
    "choices."
)
# The share of the time until the verdict.
_CHOSEN = 0.9


@relaxed_gc()
def quantize(
    source: ModelSource,
    data: DataSource | None = None,
    *,
    weights: str = "int8",
    activations: str | None = "uint8",
    layers: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    scales: str | None = None,
    integer_only: bool = False,
    target: str | None = None,
    budget: str | None = None,
    sensitivity: bool = False,
    effort: str = "default",
    cluster: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    fail_below: str | None = None,
    progress: Progress | None = None,
) -> QuantizationResult:
    """Quantize what a float model multiplies and adds up, as far as its outputs allow.

    Constant weights get a quantizer, and so does each tensor that they are multiplied with, and
    both factors of other products: Conv, ConvTranspose, Gemm, MatMul, GRU, LSTM, RNN. Nothing
    else does. BatchNormalization behind a convolution goes into its weights first; a bias of a
    convolution is put on the grid of the products, in 32 bits.

    Ranges are those with the least error of the layers that read the tensor, on samples of the
    data; so are factors, powers of two, by which channels of activations are scaled against their
    weights. A choice other than the whole range is kept if it helps on other samples, too. So are
    weights of few bits that GPTQ rounded; with no data they are rounded to nearest. One of every
    four samples is held back, and the verdict is on these.

    Args:
        source: As for `anybit.load`. It is not changed.
        data: Inputs, without labels: the path of an .npz by input name, of an .npy or of a folder
            of them; an array or a dict; an iterable of these. Rows are samples, where the model
            takes them by themselves. Hundreds are better than ten.
        weights: Words: "int8", "int4 per-tensor", "ternary", "fp8_e4m3", "int8 power-of-two",
            "int4 per-block 32", "mxfp4", "nvfp4". Scales are per channel, and integers the same on
            both sides of 0, unless that is said.
        activations: The same; None for none, which needs no data. Unsigned integers have a
            zero-point. Blocks of activations have MX formats.
        layers: By name or pattern (`head.*`) words for the weights of some layers, or for weights
            and activations with a slash between: "int4/uint8"; "float" for what stays. Later ones
            win. A tensor that several layers read gets the widest that one of them asks for.
        keep: Names or patterns of nodes that keep their floats, whatever else is said.
        scales: "power-of-two" for all of them, be they said so by words or not: sums are exact on
            every machine then, as long as they fit.
        integer_only: Whether what lies between the first and the last layer gets quantizers, too,
            as far as `anybit.compile` needs them to compute all of it with integers: what adds,
            puts together, averages, or rises and falls. What is moved before it is read gets them
            where it comes from, and what is put together has one grid.
        target: A compiler for FPGAs, "finn" or "hls4ml", that is to take the result: zero-points
            are 0, weights signed and narrow, activations unsigned after Relu and signed elsewhere,
            for hls4ml with one power-of-two scale per tensor. Remarks say what `anybit.check`
            finds for it after `anybit.clean(result, target=target)`.
        budget: A mix of widths, instead of one for all: "4MB" for the constants, "50%bops" of the
            operations on bits that the words above stand for, or "30dB" on the outputs. Integers
            that are not named in `layers` get the widths that harm the outputs least: weights 2 to
            8 bits or 16, activations 8 or 16, these as said where bytes are counted, and down to 4
            bits where operations are.
        sensitivity: Whether to measure what each layer alone does to the outputs, before biases
            make up for it: as many runs as there are layers. A budget does it anyway.
        effort: "default", or "fast": runs the model once per sample, takes the whole range of each
            tensor and rounds weights to nearest.
        cluster: The address of a Ray cluster ("auto", "ray://HOST:PORT") that runs the work, or
            "local" to start one on this machine for it. Its machines need this package, and must
            see data given as paths. By default threads of this process run it:
            `anybit.num_threads()`, but at most 8. The result is the same.
        cache: A folder for what is found in the data, where another run, after this one was
            stopped, say, takes it from.
        fail_below: What `verdict.passed` asks for: "10dB" of SQNR, "95%" agreement, both
            ("10dB,95%"), or "none". By default 10 dB, and 90 % where agreement means something.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ChildProcessError: Processes of the cluster ended again and again.
        ModelError: The model cannot be read or run, has quantizers already, or nothing that could
            be quantized; words that are not known; a budget that no mix keeps, with the figure
            that was reached.
        DataError: The data are missing, empty, or do not fit the model.
    """
    where = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    advance = progress or (lambda share: None)
    if scales not in (None, _POWER_OF_TWO):
        raise ModelError(describe_unknown("scales", str(scales), [_POWER_OF_TWO]))
    limit, config = None if budget is None else parsed(budget), preset(effort)
    limits = parse_thresholds(fail_below, has_data=data is not None)
    check_target(target)
    if cache is not None and Path(cache).exists() and not Path(cache).is_dir():
        raise ModelError(f"cache {os.fspath(cache)!r} is not a folder; name one, or a new one")
    if limit is not None and data is None:
        raise ModelError("a budget needs data to find what layers do to the outputs; give some")
    model, remarks = _prepared(source, where)
    origin = origin_of(source) if isinstance(source, str | os.PathLike) else {}
    named = [keep] if isinstance(keep, str) else keep
    said = (weights, activations or FLOAT), layers or {}, named, scales is not None
    placement = find_targets(model)
    if integer_only:
        from anybit.ptq.graph.integer_only import add_elementwise_targets

        placement = add_elementwise_targets(placement, model)
    wanted = plan(model, placement, *said)
    if target is not None:
        wanted = for_target(wanted, target)
    if integer_only:
        _check_integers(wanted, limit)
    if not any(layer.weights for layer in wanted.layers):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(wanted.left.items())[:4])
        raise ModelError(
            f"{where} has no layer to quantize: {reasons or 'nothing in it multiplies weights'}"
        )
    if wanted.activations and data is None:
        raise ModelError(
            "activations need data to find their ranges; give some, or quantize weights alone "
            "(--activations float; in Python None)"
        )
    if any(each.block_size for each in wanted.activations.values()):
        apply(model, source, LiftOpset(DYNAMIC_GRID_OPSET), InferShapes())
        wanted = plan(model, find_targets(model), *said)
    check_weights(wanted.layers)
    samples, floats, macs = None, None, {}
    if data is not None:
        samples = Dataset(data, list_inputs(model.graph, where))
        floats = outputs_of(model, where)
        samples.verify_row_independence(
            make_independence_test(floats.recording.recorder(alone=False).run)
        )
        macs = multiplications(model, wanted.layers, next(iter(samples)), where)
    size, mix, noises = Sizes(model), None, None
    with open_executor(cluster) as executor:
        attempts = CandidateBuilder(model, where, samples, floats, executor, cache, config)
        if limit is None or samples is None:
            found = attempts.attempt(wanted, lambda share: advance(_CHOSEN * share))
            if sensitivity and samples and found.verdict and found.verdict.sqnr is not None:
                from anybit.ptq.mixed_precision.budget_search import measure_layer_noise

                noises = measure_layer_noise(found, attempts, samples)
        else:
            from anybit.ptq.mixed_precision.budget_search import search_mixed_precision

            mix = search_mixed_precision(limit, wanted, attempts, samples, macs, size, advance)
            found, noises = mix.attempt, mix.noises
    advance(1.0)
    found.model.metadata_props.update(origin)
    if found.verdict is not None:
        found = replace(found, verdict=replace(found.verdict, thresholds=limits))
    if integer_only:
        found.model.metadata_props[INTEGER_ONLY] = "1"
    judged = samples is None or decides_by_others(samples, config.calibration)
    if config.searches and not judged:
        remarks += (_NOT_JUDGED,)
    if sensitivity and noises is None:
        remarks += (_NOT_MEASURED,)
    return QuantizationResult(
        found.model,
        tuple(row(layer, found, macs, noises, judged) for layer in found.plan.layers),
        found.plan.left,
        remarks
        + ((*samples.remarks, *unchanging(samples)) if samples else ())
        + found.plan.remarks
        + found.remarks
        + idle(found)
        + logarithms(found, model)
        + nonfinite(found, model)
        + (mix.remarks if mix else ())
        + (taken_by(target, found.model) if target else ()),
        mix.front if mix else (),
        found.verdict,
        size.whole,
        size(found.plan),
        Form.COMPACT if target is None else Form.QONNX,
    )


def _prepared(source: ModelSource, where: str) -> tuple[ir.Model, tuple[str, ...]]:
    """Return a copy with constants folded and batch normalization in the weights, and remarks."""
    model = read_copy(source)
    inline(model, source)
    # Files of old versions list their constants among the inputs. Nobody replaces them from now on.
    model.graph.inputs[:] = [each for each in model.graph.inputs if not each.is_initializer()]
    apply(model, source, Normalize(), StandardLayout(), NameLayers())
    ours = [node for node, _ in operators_in(model)]
    others = [
        node
        for node in nodes_in(model.graph)
        if is_quantize(node) or is_dequantize(node) or is_multi_threshold(node)
    ]
    if ours or others:
        raise ModelError(
            f"{where} has quantizers already ({(ours or others)[0].op_type}); quantize the float "
            "model that it was made of"
        )
    with errors_named_after(source):
        remarks = compute_in_float32(model)
    apply(model, source, Simplify(FoldConstants()), FoldBatchNorm(), NameNodes())
    separate_branches(model)
    *_, asked = apply(model, source, Normalize(), InferShapes(), AskTypes())
    if asked.modified:
        apply(model, source, InferShapes())
    return model, remarks


def _check_integers(wanted: Plan, limit: Budget | None) -> None:
    """ModelError for what cannot be integers of at most 8 bits from the first layer to the last."""
    for what, of_all in (("activations", wanted.activations), ("weights", wanted.weights)):
        wrong = [each.text for each in of_all.values() if not _is_computed(each)]
        if wrong or not of_all:
            raise ModelError(
                f"integer_only: {what} are integers of at most 8 bits then, with no blocks, not "
                f"{wrong[0] if wrong else FLOAT}"
            )
    if limit is not None:
        raise ModelError(
            f"budget: {limit.words!r} may take more than 8 bits, which integer_only excludes"
        )


def _is_computed(scheme: QuantSpec) -> bool:
    """Whether integer networks have such values."""
    return (
        isinstance(scheme.format, IntegerFormat | BipolarFormat)
        and scheme.bits <= 8
        and not scheme.block_size
    )
