# SPDX-License-Identifier: Apache-2.0
"""Runs of a single layer, quantized and float."""

import onnx_ir as ir
from pass_checks import random
from small_models import model, node

from anybit.ptq.algorithms.layer_runner import LayerRunner
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import find_targets
from anybit.quant_types.spec import parse_quant_spec


def test_measure_powers_handles_samples_that_reuse_memory() -> None:
    """Pass samples from a generator, whose memory later samples reuse."""
    network = ir.from_proto(
        model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    )
    (layer,) = find_targets(network).layers
    runner = LayerRunner(network, layer, 0, parse_quant_spec("int3", "weights"), DEFAULT)
    kept = [{"x": random(2, 4, seed=seed)} for seed in range(100)]
    powers = list(runner.measure_powers(None, None, (dict(sample) for sample in kept)))
    assert powers == list(
        LayerRunner(network, layer, 0, runner.spec, DEFAULT).measure_powers(None, None, kept)
    )
