# SPDX-License-Identifier: Apache-2.0
"""From what PyTorch's exporter writes to a graph as one would like to get it."""

import re
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import OutputFixPass

from anybit.errors import ModelError
from anybit.onnx.cleaning import clean
from anybit.onnx.graph.names import Names
from anybit.onnx.operators.registry import operator_of, versions_of
from anybit.ops import Operator

_RANDOM = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}
_CALL = "anybit.torch.call"


def tidy(model: ir.Model, sizes: list[dict[int, str]]) -> ir.Model:
    """The same model without traces of how it was made, cleaned; quantizers of constants stay.

    `sizes` gives for each input what its free axes are called.

    Raises:
        ModelError: The model has two versions of one operator, or draws random numbers.
    """
    _check_versions(model)
    _separate_names(model)
    _rename_sizes(model, sizes)
    for number, node in enumerate(_calls(model)):
        node.meta[_CALL] = number
    for node in model.graph.all_nodes():
        _fix_shape(node)
    OutputFixPass()(model)  # an output of its own for each, be it an input or twice the same
    cleaned = clean(model, keep_quantizers=True)
    _check_known(cleaned)
    forget(cleaned)
    return cleaned


def calls(model: ir.Model) -> dict[int, ir.Node]:
    """The nodes of our operators, by their number in the order of calls."""
    return {node.meta[_CALL]: node for node in _calls(model) if _CALL in node.meta}


def _calls(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in model.graph if operator_of(node) is not None)


def forget(model: ir.Model) -> None:
    """Drop metadata and comments: the exporter writes paths and lines of source into them."""
    model.metadata_props.clear()
    model.doc_string = None
    graphs = list(model.graphs())
    for graph in graphs:
        graph.metadata_props.clear()
        graph.doc_string = None
        for value in (*graph.inputs, *graph.initializers.values()):
            _forget_value(value)
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                _forget_value(value)


def _forget_value(value: ir.Value) -> None:
    value.metadata_props.clear()
    value.doc_string = None


def _check_versions(model: ir.Model) -> None:
    used: dict[tuple[str, str], set[Operator]] = {}
    for node in model.graph.all_nodes():
        operator = operator_of(node)
        if operator is not None:
            used.setdefault((operator.onnx_domain, operator.onnx_name), set()).add(operator)
    for (domain, name), operators in used.items():
        if len(operators) > 1:
            versions = sorted(operators, key=lambda each: each.version)
            spelled = " and ".join(each.name for each in versions)
            raise ModelError(
                f"the model uses {spelled}, which are versions of the ONNX operator {name}: a file "
                f"can import one version of {domain!r} only; use {versions[-1].name} throughout"
            )


def _check_known(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if node.domain == "" and (node.op_type in _RANDOM or _drops_at_random(node)):
            raise ModelError(
                f"the model draws random numbers in eval mode ({node.op_type}); pass "
                "training=self.training to functions such as dropout"
            )
        if node.domain != "" and not versions_of(node.domain, node.op_type):
            raise ModelError(
                f"the exporter wrote the operator {node.op_type} of {node.domain!r}, which no "
                "runtime has; replace what it stands for"
            )


def _drops_at_random(node: ir.Node) -> bool:
    training = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    tensor = None if training is None else training.const_value
    return training is not None and (tensor is None or bool(tensor.numpy()))


def _separate_names(model: ir.Model) -> None:
    """Rename results that are called like an input or a stored tensor.

    The exporter numbers its own names, val_0, and a module may have a buffer of that name.
    """
    graphs = list(model.graphs())
    given = {
        value.name for graph in graphs for value in (*graph.inputs, *graph.initializers.values())
    }
    unique = Names(given | {value.name for value in _values(model)})
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name is not None and value.name in given:
                value.name = unique(value.name)


def _rename_sizes(model: ir.Model, sizes: list[dict[int, str]]) -> None:
    """Give free sizes the names that the caller gave them; the exporter calls them s0, s77."""
    names = {}
    for value, named in zip(model.graph.inputs, sizes, strict=False):
        for axis, name in named.items():
            size = value.shape[axis] if value.shape is not None else None
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                names[size.value] = name
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape(
                pattern.sub(lambda found: names[found[1]], size.value)
                if isinstance(size, ir.SymbolicDim) and size.value is not None
                else size
                for size in value.shape
            )


def _values(model: ir.Model) -> Iterable[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs


def _fix_shape(node: ir.Node) -> None:
    """A Reshape whose result has one free size, and no empty one, needs no computed target."""
    if (node.domain, node.op_type) != ("", "Reshape") or node.graph is None:
        return
    shape = node.outputs[0].shape
    target = node.inputs[1]
    if shape is None or target is None or target.const_value is not None:
        return
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    if sizes.count(-1) > 1 or 0 in sizes:
        return
    constant = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
    constant.outputs[0].name = f"{node.outputs[0].name}_shape"
    node.graph.insert_before(node, constant)
    node.replace_input_with(1, constant.outputs[0])
    node.attributes.pop("allowzero", None)
