# SPDX-License-Identifier: Apache-2.0
"""Overhead of one custom operator node in ONNX Runtime.

    python benchmarks/node_overhead.py

The difference between chains of 64 and of 32 nodes on 16 elements, per node, excludes the cost of a
run. ONNX Runtime's own Floor is the yardstick.
"""

import itertools

import numpy as np
import onnxruntime
from _measure import arguments, best_times, machine, show, versions
from _sessions import session
from onnx import TensorProto, helper, numpy_helper

import anybit.onnxruntime
from anybit.ops import OPERATORS, Operator
from anybit.ops.domain import FLOATING

ELEMENTS, LONG, SHORT = 16, 64, 32


def chain(operator: Operator | None, length: int) -> onnxruntime.InferenceSession:
    """Create a session of equal nodes in a chain; Floor without an operator."""
    parameters = [] if operator is None else [item.name for item in operator.inputs[1:]]
    name, domain = ("Floor", "") if operator is None else (operator.onnx_name, operator.onnx_domain)
    values = ["x", *(f"value_{i}" for i in range(1, length)), "y"]
    nodes = [
        helper.make_node(name, [x, *parameters], [y], domain=domain)
        for x, y in itertools.pairwise(values)
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
    options = onnxruntime.SessionOptions()
    anybit.onnxruntime.register(options)
    return session(helper.make_model(graph, opset_imports=imports, ir_version=8), options)


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=50)
    options = parser.parse_args()
    # A chain needs operators whose output has the dtype of their input.
    operators = [operator for operator in OPERATORS if operator.inputs[0].domain == FLOATING]
    chained = {"Floor": None, **{operator.name: operator for operator in operators}}
    feeds = {"x": np.linspace(-1, 1, ELEMENTS, dtype=np.float32)}
    sessions = {
        (name, length): chain(operator, length)
        for name, operator in chained.items()
        for length in (LONG, SHORT)
    }
    calls = {key: lambda runner=runner: runner.run(None, feeds) for key, runner in sessions.items()}
    times = best_times(calls, options.rounds)
    print(machine(), versions("onnxruntime", "anybit"), sep="; ")
    rows = []
    for name in chained:
        seconds = (times[name, LONG] - times[name, SHORT]) / (LONG - SHORT)
        rows.append((name, f"{seconds * 1e6:.2f}"))
    show(f"One node on {ELEMENTS} float32", ("operator", "us per node"), rows, options.markdown)


if __name__ == "__main__":
    main()
