# SPDX-License-Identifier: Apache-2.0
"""What does one node of ours cost in ONNX Runtime, beyond its arithmetic?

    python benchmarks/node_overhead.py

The time of a chain of 64 nodes on 16 elements minus that of 32 nodes, per node: what a run costs
by itself falls out. ONNX Runtime's own Floor beside ours, all measured in turn, the best of many.
Target: at most 1 us per node.
"""

import itertools

import numpy as np
import onnxruntime
from _measure import arguments, best_times, machine, show, versions
from onnx import TensorProto, helper, numpy_helper

import anybit.onnxruntime
from anybit.ops import OPERATORS, Operator

ELEMENTS, LONG, SHORT = 16, 64, 32


def chain(operator: Operator | None, length: int) -> onnxruntime.InferenceSession:
    """A session of equal nodes in a row; Floor for None."""
    parameters = [] if operator is None else [each.name for each in operator.inputs[1:]]
    name, domain = ("Floor", "") if operator is None else (operator.onnx_name, operator.onnx_domain)
    values = ["x", *(f"value_{i}" for i in range(1, length)), "y"]
    nodes = [
        helper.make_node(name, [before, *parameters], [after], domain=domain)
        for before, after in itertools.pairwise(values)
    ]
    ones = np.ones(1, np.float32)
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ELEMENTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ELEMENTS])],
        [numpy_helper.from_array(ones, parameter) for parameter in parameters],
    )
    imports = [helper.make_opsetid("", 17)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    anybit.onnxruntime.register(options)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def main() -> None:
    parser = arguments("What does one node of ours cost in ONNX Runtime?")
    parser.set_defaults(rounds=50)
    given = parser.parse_args()
    # Only what computes float32 from float32 can be chained.
    operators = [None, *(each for each in OPERATORS if each.inputs[0].domain.dtypes == ())]
    feeds = {"x": np.linspace(-1, 1, ELEMENTS, dtype=np.float32)}
    names = ["Floor" if each is None else each.name for each in operators]
    calls = {}
    for name, operator in zip(names, operators, strict=True):
        for length in (LONG, SHORT):
            session = chain(operator, length)
            calls[f"{name} {length}"] = lambda session=session: session.run(None, feeds)
    best = best_times(calls, given.rounds)
    costs = {
        name: (best[f"{name} {LONG}"] - best[f"{name} {SHORT}"]) / (LONG - SHORT) for name in names
    }
    print(machine(), versions("onnxruntime", "anybit"), sep="; ")
    rows = [(name, f"{cost * 1e6:.2f}") for name, cost in costs.items()]
    show(f"One node on {ELEMENTS} float32", ("operator", "us per node"), rows, given.markdown)


if __name__ == "__main__":
    main()
