# SPDX-License-Identifier: Apache-2.0
"""Counts of the sums that a compiled model computes."""

import numpy as np
import onnx
from onnx import helper
from small_models import DOMAIN

import anybit
from anybit.compiler.program.program import Product, SpatialMean

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
SUMS = (*PRODUCTS, "AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum")


def count_sums(proto: onnx.ModelProto) -> int:
    """Return the number of nodes that add up."""
    return sum(node.op_type in SUMS for node in proto.graph.node)


def count_computed_sums(compiled: anybit.CompiledModel) -> int:
    """Return the number of sums in the float nodes and in the regions of a compiled model."""
    floats = sum(node.op_type in SUMS for node in compiled.model.graph.all_nodes())
    instructions = (
        instruction for program in compiled.report.programs for instruction in program.instructions
    )
    return floats + sum(
        isinstance(instruction, Product | SpatialMean) for instruction in instructions
    )


def add_readers(proto: onnx.ModelProto, random: np.random.Generator) -> onnx.ModelProto:
    """Return the model with up to three further readers of values that depend on its input.

    A reader is an output of the graph, a Softmax, or a quantizer of 4 bits. Most read a sum.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    reached, values, sums = {"x"}, [], []
    for node in proto.graph.node:
        name = node.output[0]
        if node.op_type == "Shape" or not reached & set(node.input):
            continue
        reached.add(name)
        if name != "y" and node.op_type != "QuantizeLinear":
            values.append(name)
            sums += [name] if node.op_type in SUMS else []
    for number in range(random.integers(1, 4)):
        value = str(random.choice(sums if sums and random.random() < 0.6 else values))
        _read(graph, value, f"read_{number}", int(random.integers(3)))
    return made


def _read(graph: onnx.GraphProto, value: str, name: str, kind: int) -> None:
    if kind == 0:
        if value not in {output.name for output in graph.output}:
            graph.output.append(helper.make_tensor_value_info(value, 1, None))
        return
    if kind == 1:
        graph.node.append(helper.make_node("Softmax", [value], [name], axis=-1))
    else:
        numbers = {f"{name}_scale": 0.25, f"{name}_zero": 0.0, f"{name}_bits": 4.0}
        graph.initializer.extend(
            helper.make_tensor(key, 1, [], [number]) for key, number in numbers.items()
        )
        graph.node.append(helper.make_node("Quant", [value, *numbers], [name], domain=DOMAIN))
    graph.output.append(helper.make_tensor_value_info(name, 1, None))
