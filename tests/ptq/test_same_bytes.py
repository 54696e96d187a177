# SPDX-License-Identifier: Apache-2.0
"""Equality of bytes for any number of threads of the numerical libraries."""

import os
import subprocess
import sys

import pytest

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_PROGRAM = """
from hashlib import sha256

import anybit
import numpy as np
import onnx_ir as ir
from anybit.ptq.config import DEFAULT
from anybit.ptq.algorithms.hessian import Moments, factorize
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(1)
x = rng.standard_normal((600, 300)).astype(np.float32)
w = rng.standard_normal((300, 80)).astype(np.float32)
ends = [
    [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])]
    for name, size in (("x", 300), ("y", 80))
]
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
graph = helper.make_graph(nodes, "graph", *ends, [numpy_helper.from_array(w, "w")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
moments = Moments(np.zeros((1, 513, 513)))
moments.add([rng.standard_normal((1, 2047, 513)).astype(np.float32)])
factors = factorize(moments, DEFAULT.gptq)
result = anybit.quantize(model, x, weights="int4")
for array in (moments.sums, factors.triangle, factors.diagonal):
    print(sha256(array.tobytes()).hexdigest())
print(sha256(ir.to_proto(result.model).SerializeToString()).hexdigest())
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPU cores")
def test_quantize_gives_the_same_bytes_for_any_number_of_threads() -> None:
    """Compute second moments, long sums that a BLAS divides among its threads."""
    outputs = set()
    for threads in ("1", "2"):
        environment = os.environ | dict.fromkeys(_VARIABLES, threads)
        program = [sys.executable, "-c", _PROGRAM]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1
