# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization as a pipeline of stages."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from anybit.data.dataset import DataSource
from anybit.onnx.files.origin import describe_origin
from anybit.onnx.files.reader import Source as ModelSource
from anybit.onnx.files.sample_shapes import describe_sample_shapes
from anybit.onnx.passes import InferShapes, LiftOpset
from anybit.onnx.preparation import apply_passes
from anybit.onnx.process import relax_gc
from anybit.parallel import open_executor
from anybit.ptq.calibration.macs import count_layer_macs
from anybit.ptq.calibration.random_tokens import (
    describe_random_tokens,
    expand_random_tokens,
    requests_random_tokens,
)
from anybit.ptq.context import Context, Progress, ignore_progress, scale_progress
from anybit.ptq.fpga_targets import adapt_plan
from anybit.ptq.graph.integer_only import add_elementwise_targets
from anybit.ptq.graph.outputs import add_output_nodes, find_output_targets
from anybit.ptq.graph.prepare import prepare
from anybit.ptq.graph.stored_weights import has_stored_weights
from anybit.ptq.graph.targets import TargetNode, Targets, find_targets
from anybit.ptq.mixed_precision.budget_search import (
    SearchResult,
    measure_layer_noise,
    search_mixed_precision,
)
from anybit.ptq.options import QuantizeOptions, parse_options
from anybit.ptq.plan import FLOAT, QuantPlan, assign_specs, check_plan
from anybit.ptq.result import QuantizationResult
from anybit.ptq.result_builder import ResultBuilder
from anybit.ptq.search.candidates import CandidateBuilder, quantize_without_data
from anybit.ptq.search.dynamic_choice import select_dynamic_scales
from anybit.ptq.search.evaluate import open_dataset
from anybit.ptq.specs.dynamic_grid import DYNAMIC_GRID_OPSET
from anybit.ptq.stored_options import adapt_options, keep_stored_weights

# The share of the time of calibration and search; the rest is for the quality.
_SEARCHED = 0.9


@relax_gc()
def quantize(
    source: ModelSource,
    data: DataSource | None = None,
    *,
    weights: str | None = None,
    activations: str | None = None,
    layers: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    outputs: str | None = None,
    states: Mapping[str, str] | None = None,
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
    """Quantize the weights and activations of a float model.

    Quantizers are inserted at the inputs of MatMul-like operators: Conv, ConvTranspose, Gemm,
    MatMul, GRU, LSTM and RNN. All other operators stay float. Batch normalization is folded into
    the weights of convolutions. Biases of convolutions get 32 bits and the scale of the products.

    Ranges, SmoothQuant and AWQ factors and rounded weights (GPTQ) minimize the output error of each
    layer on calibration samples. Choices that do not help on other samples are dropped. One of four
    samples is held out to measure the quality. Without data, weights are rounded to nearest.

    A model whose weights are quantized already (MatMulNBits, or quantizers of constants) keeps
    them, and its activations get dynamic scales.

    Args:
        source: A float32 or float16 model, as for `anybit.load`. It is not changed.
        data: Calibration inputs without labels: the path of an .npz by input name, of an .npy, or
            of a folder of them; an array or a dict; or an iterable of these. Each row is a sample
            if the model treats rows independently. Hundreds of samples are better than ten.
            "random-tokens" makes samples for models of text, with random token ids: they lower the
            error of weights and dynamic activations, and count as no data for everything else.
        weights: Spec of weights, such as "int8", "int4 per-tensor", "ternary", "fp8_e4m3",
            "int8 power-of-two", "int4 per-block 32", "mxfp4" or "nvfp4"; "int8" by default, but
            "float" next to weights that are quantized already. By default scales are per channel,
            and signed integers symmetric around 0, without the lowest code ("narrow").
        activations: Spec of activations, or "float" to keep them float. By default "uint8" with
            data and "float" without. "auto" takes "uint8" or, where that lowers the noise on
            samples enough, "uint8 dynamic". Unsigned integers have a zero-point. "int8 dynamic"
            computes a scale per row at run time, "int8 dynamic per-tensor" one per tensor. Block
            formats are MX formats. Float, dynamic and MX activations need no data.
        layers: Specs of single layers by name or pattern (`head.*`): "int4" for weights,
            "int4/uint8" for weights and activations, or "float". Later entries win. An activation
            that several layers use gets the widest spec requested.
        keep: Names or patterns of nodes that stay float. They win over `layers`.
        outputs: Spec of the outputs of the model, such as "int8"; they are float by default. Every
            float32 output gets a quantizer, which needs data.
        states: Outputs by the inputs that take them in the next step, such as {"h": "h_next"}. Both
            ends of a state get one grid, so that codes are fed back as they are.
        scales: "power-of-two" restricts all scales. Sums of products are exact then on every
            machine, as long as they fit.
        integer_only: Whether to quantize elementwise and pooling operators, too, so that
            `anybit.compile` computes everything from the first to the last layer with integers.
        target: An FPGA compiler, "finn" or "hls4ml". Quantizers follow its rules: zero-points are
            0, weights signed and narrow, activations unsigned after Relu and signed elsewhere. For
            hls4ml there is one power-of-two scale per tensor. Remarks list the errors of
            `anybit.check` after `anybit.clean(result, target=target)`.
        budget: A limit for a mixed-precision search: "4MB" for the size of constants, "50%bops" for
            bit operations relative to `weights` and `activations`, or "30dB" for the SQNR of the
            outputs. Integers of layers not in `layers` get other widths: weights 2 to 8 or 16 bits,
            activations 8 or 16 bits, or down to 4 bits if operations are limited.
        sensitivity: Whether to measure the effect of each layer on the outputs, by one run per
            layer. A budget search measures it anyway.
        effort: "default", or "fast" to run the model once per sample, use the whole range of each
            activation and round weights to nearest.
        cluster: Address of a Ray cluster ("auto", "ray://HOST:PORT"), or "local" to start one on
            this machine. Its machines need this package, and access to data given as paths. By
            default up to 8 threads of this process work, at most `anybit.num_threads()`. The result
            is the same.
        cache: Folder for calibration statistics, from which an interrupted run resumes.
        fail_below: Thresholds for `verdict.passed`: "10dB" of SQNR, "95%" agreement, both
            ("10dB,95%"), or "none". The default is 10 dB, and 90 % for outputs with classes.
        progress: Function that takes the completed share, from 0 to 1.

    Returns:
        The quantized model, with its quality and a description of each layer.

    Raises:
        ModelError: The model cannot be read or run, has quantized activations already, or has no
            layer to quantize; or no mixed precision meets the budget.
        OptionError: An option has an unsupported value, or needs data.
        DataError: The data are empty or do not fit the model.
        ChildProcessError: Worker processes of the cluster ended repeatedly.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    has_data = data is not None and not requests_random_tokens(data)
    options = parse_options(
        weights=weights,
        activations=activations,
        layers=layers,
        keep=keep,
        outputs=outputs,
        states=states,
        scales=scales,
        integer_only=integer_only,
        target=target,
        budget=budget,
        sensitivity=sensitivity,
        effort=effort,
        cache=cache,
        fail_below=fail_below,
        has_data=has_data,
    )
    model, remarks = prepare(source, name)
    is_stored = has_stored_weights(model)
    requested = None if weights == FLOAT else weights
    if is_stored:
        options = adapt_options(options, name, weights=requested, scales=scales)
    origin = describe_origin(source) if isinstance(source, str | os.PathLike) else {}
    if options.specs.has_dynamic_integers or options.dynamic is not None:
        apply_passes(model, source, LiftOpset(DYNAMIC_GRID_OPSET), InferShapes())
    if options.specs.outputs:
        remarks += add_output_nodes(model)
    plan = assign_specs(model, _find_targets(model, integer_only), options.specs)
    if target is not None:
        plan = adapt_plan(plan, target)
    check_plan(plan, name, integer_only=integer_only, has_data=has_data)
    if is_stored:
        remarks += keep_stored_weights(plan, name, weights=requested)
    else:
        remarks += describe_random_tokens(model, name, data)
    results = ResultBuilder(model, options, origin, remarks)
    if data is None:
        return results.build_unmeasured(quantize_without_data(model, plan, options.config))

    data = expand_random_tokens(data, model, name, options.config.random_tokens)
    dataset, floats = open_dataset(data, model, name)
    first = next(iter(dataset))
    results = replace(results, origin={**origin, **describe_sample_shapes(model, first)})
    macs = count_layer_macs(model, plan.layers, first, name)
    with open_executor(cluster) as executor:
        advance = progress or ignore_progress
        ctx = Context(model, name, dataset, executor, advance, options.config, cache)
        builder = CandidateBuilder(ctx, floats)
        if is_stored:
            candidate = quantize_without_data(model, plan, options.config)
            search = SearchResult(builder.measure(candidate))
        else:
            search = _search(builder, plan, options, macs, results)
    advance(1.0)
    return results.build(search, dataset, macs)


def _search(
    builder: CandidateBuilder,
    plan: QuantPlan,
    options: QuantizeOptions,
    macs: Mapping[TargetNode, int],
    results: ResultBuilder,
) -> SearchResult:
    """Return the candidate of a plan, or of the best mixed precision within the budget."""
    if options.budget is not None:
        return search_mixed_precision(options.budget, plan, builder, macs, results.sizes)
    searched = scale_progress(builder.ctx.progress, 0, _SEARCHED)
    if options.dynamic is not None:
        plan = select_dynamic_scales(builder, plan, options.dynamic, searched)
        searched = ignore_progress
    candidate = builder.build(plan, searched)
    if options.sensitivity and candidate.verdict.sqnr is not None:
        return SearchResult(candidate, measure_layer_noise(candidate, builder))
    return SearchResult(candidate)


def _find_targets(model: ir.Model, integer_only: bool) -> Targets:
    """Return the layers and outputs to quantize."""
    targets = find_targets(model)
    targets = replace(targets, layers=(*targets.layers, *find_output_targets(model)))
    return add_elementwise_targets(targets, model) if integer_only else targets
