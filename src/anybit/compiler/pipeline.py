# SPDX-License-Identifier: Apache-2.0
"""The compiler: from a quantized model to one whose layers run on integers.

Stages: prepare, analyze, legalize, partition, lower, requantize, encode, rewrite. The partitioner
calls lowering, and lowering requantization, because only these tell whether there is integer code.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from anybit.compiler.analyze.analysis import AnalyzedModel, analyze_model
from anybit.compiler.compiled import CompiledModel, make_network_engine
from anybit.compiler.coverage import collect_layers
from anybit.compiler.encode import Region, encode_regions
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.legalize import legalize
from anybit.compiler.lower.lowerer import Lowerer
from anybit.compiler.partition.partitioner import Partition, partition
from anybit.compiler.prepare.batch_first import put_batch_first
from anybit.compiler.prepare.codes.lifting import (
    LiftedOperators,
    lift_code_operators,
    restore_code_operators,
)
from anybit.compiler.prepare.dynamic_nbits import (
    LiftedProduct,
    lift_dynamic_nbits,
    restore_nbits,
)
from anybit.compiler.prepare.eligibility import explain_missing_quantizers, is_integer_only
from anybit.compiler.prepare.flatten_rows import flatten_rows
from anybit.compiler.prepare.heads import simplify_heads
from anybit.compiler.prepare.hoist_quantizers import hoist_quantizers
from anybit.compiler.prepare.infer_channels import infer_channels
from anybit.compiler.prepare.input_shapes import fix_shapes
from anybit.compiler.prepare.merge_quantizers import merge_quantizers
from anybit.compiler.prepare.name_sizes import name_sizes
from anybit.compiler.prepare.pool_codes import pool_codes
from anybit.compiler.prepare.repeat_scales import repeat_scales
from anybit.compiler.prepare.shuffles import replace_shuffles
from anybit.compiler.region_timing import measure_regions
from anybit.compiler.report import Report
from anybit.compiler.requantize.requantizer import CachingRequantizer
from anybit.compiler.rewrite.dynamic_matmuls import (
    DynamicPair,
    find_dynamic_pairs,
    replace_dynamic_pairs,
)
from anybit.compiler.rewrite.float_weights import collect_integer_weights, store_integer_weights
from anybit.compiler.rewrite.gelu import list_dependents, reorder_gelus
from anybit.compiler.rewrite.matmul_fusion import fuse_matmuls
from anybit.compiler.rewrite.regions import replace_regions
from anybit.compiler.rewrite.row_axes import restore_row_axes
from anybit.compiler.selection import LeftRegion
from anybit.compiler.timing import add_times
from anybit.errors import ModelError, OptionError
from anybit.model import RuntimeEngine
from anybit.onnx import Source
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.ranges import Ranges, make_input_values
from anybit.onnx.graph.shapes import has_dynamic_sizes
from anybit.onnx.passes import DropIdentities, InferShapes, SplitDynamicProducts
from anybit.onnx.preparation import make_runnable, prepare_for_analysis
from anybit.onnx.process import relax_gc, silence_onnx_logs
from anybit.quant_types.layer_info import Guarantee


@silence_onnx_logs()
@relax_gc()
def compile(
    source: Source,
    *,
    guarantee: str = Guarantee.BOUNDED,
    input_ranges: Ranges | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    time: bool = False,
    float_model: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> CompiledModel:
    """Run the quantized layers of a model on integers, with a guarantee for each of them.

    The nodes from a sum to the next quantizer become thresholds, which are found by evaluation of
    these float nodes. A layer has one of three guarantees:

    * `exact`: Equal to the float graph; its sums are exact in float32, in any order.
    * `certified`: Codes equal to those of every float32 evaluation, although its sums round.
    * `bounded`: Sums are exact; a float32 evaluation, which rounds them, may give other codes at
      the accumulators that the report lists.

    Args:
        source: As for `anybit.load`. It is not changed.
        guarantee: The weakest guarantee of layers that are compiled; the others stay float32.
        input_ranges: Values of inputs without quantizers, by name or for the only one: "uint8",
            "uint8/255", "int8*0.5"; as for `anybit.inspect`. Other values are rounded to these.
        shapes: Shapes of inputs with dynamic sizes, by name: layers of unknown sizes stay float32.
            A first size of 1 keeps the number of rows dynamic where the file does.
        time: Measure regions, layers and whole runs on one row for some seconds. Regions that are
            slower than their float nodes stay float32. The report then has `left`, these regions,
            and `speed`: times beside those of the float model and of its static int8 in ONNX
            Runtime.
        float_model: The float model that `time` compares with, if the quantized model does not
            record it, or its file has moved.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ModelError: The model has no quantizers or cannot be run.
        OptionError: There is no such guarantee, or a shape does not fit.
    """
    where = str(source) if isinstance(source, str | os.PathLike) else "the model"
    weakest = _parse_guarantee(guarantee)
    quantized = fix_shapes(source, shapes or {})
    model = prepare_for_analysis(quantized)
    missing, integer_only = explain_missing_quantizers(model, where), is_integer_only(model)
    parts = find_regions(model, weakest, _make_input_values(model, input_ranges), progress)
    if time:
        left = measure_regions(
            parts.analyzed.model, parts.regions, parts.pairs, parts.codes, quantized
        )
        parts = parts.without(left)
    parts = _keep_operators(parts, quantized, weakest)
    compiled = _rewrite(parts, quantized, where, integer_only=integer_only)
    compiled.source_sha256 = _hash_file(source)
    if missing and not (parts.regions or parts.left):
        reasons = [f"{x.name}: {x.reason}" for x in compiled.report.layers if x.layer.integer]
        raise ModelError("; ".join([missing, *reasons[:1]]))
    if time:
        compiled.report = add_times(compiled, quantized, float_model)
    return compiled


@dataclass(frozen=True, eq=False)
class Regions:
    """The integer regions of a model.

    Attributes:
        analyzed: The model; its constants are folded.
        regions: The regions and their programs.
        layers: All layers in the order of the graph, those that stay float32 too.
        partition: The partition that they are parts of.
        left: Regions that stay float32 because that is faster.
        pairs: Products of two tensors with computed scales, by their outputs.
        lifted: Products in place of MatMulNBits nodes.
        codes: Operators on codes, and the float nodes in their place.
    """

    analyzed: AnalyzedModel
    regions: tuple[Region, ...]
    layers: tuple[CompiledLayer, ...]
    partition: Partition
    left: tuple[LeftRegion, ...] = ()
    pairs: Mapping[str, DynamicPair] = field(default_factory=dict)
    lifted: tuple[LiftedProduct, ...] = ()
    codes: LiftedOperators = field(default_factory=LiftedOperators)

    def without(self, left: Mapping[Region, LeftRegion]) -> "Regions":
        """Return the other regions; the layers of these stay float32."""
        if not left:
            return self
        regions = tuple(region for region in self.regions if region not in left)
        layers = collect_layers(
            self.analyzed, self.partition, regions, left, self.pairs, self.codes
        )
        return replace(self, regions=regions, layers=layers, left=tuple(left.values()))


def find_regions(
    model: ir.Model,
    guarantee: Guarantee,
    ranges: Mapping[str, AbstractValue] | None = None,
    progress: Callable[[float], None] | None = None,
    *,
    lift: bool = True,
) -> Regions:
    """Return the integer regions of a normalized model, which is changed: constants are folded.

    Args:
        model: A model whose scales are folded and whose weights are not.
        guarantee: The weakest guarantee of layers in regions.
        ranges: Values of inputs without quantizers, by name.
        progress: Called with the share that is done, from 0 to 1.
        lift: Whether operators on codes become float nodes.
    """
    DropIdentities()(model)
    lifted = lift_dynamic_nbits(model)
    codes = lift_code_operators(model) if lift else LiftedOperators()
    put_batch_first(model, _list_fixed_nodes(model, codes, guarantee))
    simplify_heads(model)
    replace_shuffles(model)
    if SplitDynamicProducts()(model).modified:
        InferShapes()(model)
    infer_channels(model)
    name_sizes(model)
    flatten_rows(model)
    repeat_scales(model)
    merge_quantizers(model)
    added = hoist_quantizers(model) | pool_codes(model)
    analyzed = analyze_model(model, ranges, codes)
    illegal = legalize(analyzed)
    requantizer = CachingRequantizer(model)
    result = partition(
        analyzed,
        illegal,
        lambda decisions: Lowerer(model, guarantee, requantizer, decisions.shared),
        progress,
    )
    regions = encode_regions(result.instructions, result.outputs, added)
    pairs = dict[str, DynamicPair]()
    if guarantee is Guarantee.BOUNDED:
        pairs = {str(pair.node.outputs[0].name): pair for pair in find_dynamic_pairs(model)}
    layers = collect_layers(analyzed, result, regions, pairs=pairs, codes=codes)
    return Regions(analyzed, regions, layers, result, pairs=pairs, lifted=lifted, codes=codes)


def _list_fixed_nodes(
    model: ir.Model, codes: LiftedOperators, guarantee: Guarantee
) -> set[ir.Node]:
    """Return the nodes that may come back, or stay float32 with the bits that they have."""
    fixed = {node for at in codes.operators for node in at.chain}
    return fixed if guarantee is Guarantee.BOUNDED else fixed | {*model.graph}


def _keep_operators(parts: Regions, quantized: Source, guarantee: Guarantee) -> Regions:
    """Return the operators on codes of the file as they are if no region has any of them."""
    if parts.regions or parts.pairs or not parts.codes.operators:
        return parts
    plain = find_regions(prepare_for_analysis(quantized), guarantee, lift=False)
    return parts if plain.regions else replace(plain, layers=parts.layers, left=parts.left)


def _rewrite(parts: Regions, quantized: Source, where: str, *, integer_only: bool) -> CompiledModel:
    """Replace the regions by nodes and make the graph runnable."""
    model = parts.analyzed.model
    network = make_network_engine(model, parts.regions, where)
    report = Report(
        parts.layers,
        tuple(region.program for region in parts.regions),
        has_dynamic_sizes=has_dynamic_sizes(model),
        is_integer_only=integer_only,
        left=parts.left,
    )
    weights = collect_integer_weights(parts.analyzed.analysis)
    bounded = list_dependents(model, _list_bounded(parts.regions))
    regions = replace_regions(model, parts.regions)
    restore_nbits(model, parts.lifted)
    restore_code_operators(model, parts.codes)
    replace_dynamic_pairs(model, parts.pairs)
    fuse_matmuls(model)
    reorder_gelus(model, bounded)
    restore_row_axes(model)
    make_runnable(model, quantized)
    store_integer_weights(model, weights)
    RemoveUnusedOpsetsPass()(model)
    engine = RuntimeEngine(model, where) if network is None else network
    return CompiledModel(engine, model, report, regions, integers=parts.codes.integers)


def _list_bounded(regions: Iterable[Region]) -> set[str]:
    """Return the names of the outputs of bounded layers."""
    return {
        layer.output
        for region in regions
        for layer in region.layers.values()
        if layer.guarantee is Guarantee.BOUNDED
    }


def _hash_file(source: Source) -> str:
    """Return the SHA-256 of a model's file; empty if the model is not a regular file."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return ""
    with open(source, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_input_values(model: ir.Model, ranges: Ranges | None) -> dict[str, AbstractValue]:
    """Return the values of inputs by name."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    return make_input_values(ranges, inputs)


def compile_exposed(source: Source) -> ir.Model:
    """Return the compiled model with all tensors of codes as further outputs of its regions."""
    model = prepare_for_analysis(source)
    parts = find_regions(model, Guarantee.BOUNDED)
    replace_regions(model, [region.exposed for region in parts.regions])
    replace_dynamic_pairs(model, parts.pairs)
    restore_row_axes(model)
    return make_runnable(model, source)


def _parse_guarantee(name: str) -> Guarantee:
    try:
        return Guarantee(name)
    except ValueError:
        names = ", ".join(guarantee.value for guarantee in Guarantee)
        raise OptionError(f"guarantee must be one of {names}, got {name!r}") from None
