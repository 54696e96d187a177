# SPDX-License-Identifier: Apache-2.0
"""Choice between static and dynamic scales for the activations of each layer.

Both are searched for all layers. Dynamic scales replace static ones where the noise of the layers
on confirmation samples falls by a factor, and static scales have much noise. They cost time: the
range of each row, and floats between layers. So all layers stay static unless dynamic scales raise
the SQNR of the whole network on the ablation samples, too. Dynamic scales in all layers are the
last candidate.
"""

import itertools
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.shared_weights import group_linked
from anybit.ptq.config import DynamicConfig
from anybit.ptq.context import Progress, scale_progress
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.plan import QuantPlan
from anybit.ptq.search.candidates import CandidateBuilder
from anybit.ptq.specs.dynamic_grid import make_dynamic_grid
from anybit.quant_types.spec import QuantSpec
from anybit.text import format_count

_ROW_OPERATORS = "MatMul", "Gemm"
_CONVOLUTION = "Conv"
# Between layers, these compute floats from floats, whatever the scales are.
_FLOAT_OPERATORS = frozenset({"LayerNormalization", "Softmax", "Sqrt", "Erf"})


def select_dynamic_scales(
    builder: CandidateBuilder, plan: QuantPlan, dynamic: QuantSpec, progress: Progress
) -> QuantPlan:
    """Return the plan with dynamic scales where they are worth their time.

    Args:
        builder: Builder of candidates, which keeps the parameters of both.
        plan: The plan with static scales.
        dynamic: The spec with dynamic scales.
        progress: Called with the completed share.
    """
    config = builder.ctx.config.dynamic
    groups = [
        group
        for group in group_linked(plan.activations, _list_products)
        if all(_may_be_dynamic(activation, plan, dynamic) for activation in group)
    ]
    if not groups:
        return plan
    everywhere = _replace_specs(plan, itertools.chain(*groups), dynamic)
    static = builder.choose(plan, scale_progress(progress, 0, 0.5))
    rows = builder.choose(everywhere, scale_progress(progress, 0.5, 1))
    chosen = [
        activation
        for group in groups
        if _is_worth_time([static[a] for a in group], [rows[a] for a in group], config)
        for activation in group
    ]
    before = builder.measure_ablation(plan) if chosen else None
    best, ratio = plan, before
    candidates = [everywhere]
    if len(chosen) < sum(map(len, groups)):
        candidates.insert(0, _replace_specs(plan, chosen, dynamic))
    for tried in candidates:
        after = None if ratio is None else builder.measure_ablation(tried)
        if ratio is not None and after is not None and after >= ratio + config.least_network_gain:
            best, ratio = tried, after
    if best is plan:
        return plan
    count = sum(spec is dynamic for spec in best.activations.values())
    remark = (
        f"{count} of {format_count(len(plan.activations), 'activation')} got dynamic scales "
        f"({dynamic.text}): SQNR {ratio:.1f} dB instead of {before:.1f} dB on samples of their own"
    )
    return replace(best, remarks=(*plan.remarks, remark))


def _list_products(activation: ActivationTensor) -> list[TargetNode]:
    """Return the readers that multiply two activations: both get the same kind of scales."""
    return [layer for layer, _ in activation.readers if not layer.weights]


def _may_be_dynamic(activation: ActivationTensor, plan: QuantPlan, spec: QuantSpec) -> bool:
    """Return whether all readers can have dynamic scales, and none has specs by name.

    Convolutions that exchange codes with static scales keep these.
    """
    layers = [layer for layer, _ in activation.readers]
    if activation.sites or not plan.named.isdisjoint(layers):
        return False
    nodes = [layer.node for layer in layers]
    if any(node.op_type not in (*_ROW_OPERATORS, _CONVOLUTION) for node in nodes):
        return False
    convolutions = [node for node in nodes if node.op_type == _CONVOLUTION]
    if any(get_attribute(node, "group", 1) != 1 for node in convolutions):
        return False
    if convolutions and _reads_codes(activation, {layer.node for layer in plan.layers}):
        return False
    try:
        make_dynamic_grid(activation, spec)
    except ModelError:  # an unknown rank, or readers with several reduction axes
        return False
    return True


def _reads_codes(activation: ActivationTensor, layers: Set[ir.Node]) -> bool:
    """Return whether a compiled layer before the activation gives codes, not floats, to it."""
    waiting, intermediate = [activation.value.producer()], set[ir.Node]()
    after_layer = False
    while waiting:
        node = waiting.pop()
        if node is None or node in intermediate:
            continue
        if node in layers:
            after_layer = True
            continue
        intermediate.add(node)
        waiting += [value.producer() for value in node.inputs if value is not None]
    return after_layer and not any(node.op_type in _FLOAT_OPERATORS for node in intermediate)


def _is_worth_time(
    static: Sequence[LayerParams], dynamic: Sequence[LayerParams], config: DynamicConfig
) -> bool:
    if not all(params.errors for params in (*static, *dynamic)):
        return False
    before, after = (sum(params.error for params in group) for group in (static, dynamic))
    return before >= config.least_noise and before > config.least_gain * after


def _replace_specs(
    plan: QuantPlan, activations: Iterable[ActivationTensor], spec: QuantSpec
) -> QuantPlan:
    return replace(plan, activations={**plan.activations, **dict.fromkeys(activations, spec)})
