# SPDX-License-Identifier: Apache-2.0
"""Batch normalization as Mul and Add, bit for bit what ONNX Runtime computes."""

import numpy as np
import onnx
import pytest
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.passes import BatchNormToAffine, batch_norm_to_affine


def normalization(shape: tuple[int, ...], seed: int = 0, **options: object) -> onnx.ModelProto:
    channels = shape[1]
    constants = {name: random(channels, seed=seed + at) for at, name in enumerate("sbmv")}
    constants["v"] = np.abs(constants["v"]) + np.float32(1e-4)
    nodes = [node("BatchNormalization", "x s b m v", domain="", name="n", **options)]
    return model(nodes, constants, inputs={"x": shape}, opsets={"": 15})


@pytest.mark.parametrize("shape", [(3, 6), (2, 5, 9), (2, 64, 7, 5), (1, 3, 2, 3, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_batch_norm_to_affine_results_keep_their_bits(shape: tuple[int, ...], seed: int) -> None:
    proto = normalization(shape, 10 * seed, epsilon=0.01 * seed)
    changed = apply_passes(proto, BatchNormToAffine())
    assert kinds(changed) == ["Mul", "Add"]
    assert_same_outputs(proto, changed, random(*shape, seed=99) * 30)


def test_batch_norm_to_affine_runtime_that_rounds_elsewhere_keeps_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def once_rounded(*arguments: object) -> np.ndarray:
        _node, (x, scale, bias, mean, variance) = arguments[:2]  # type: ignore[misc]
        factor = scale / np.sqrt(variance + 1e-5, dtype=np.float64)
        return ((x - mean) * factor + bias).astype(np.float32)

    monkeypatch.setattr(batch_norm_to_affine, "evaluate_standard", once_rounded)
    changed = apply_passes(normalization((2, 5, 9)), BatchNormToAffine())
    assert kinds(changed) == ["BatchNormalization"]


def test_batch_norm_to_affine_unknown_values_stays() -> None:
    training = normalization((2, 5, 9), training_mode=1)
    assert kinds(apply_passes(training, BatchNormToAffine())) == ["BatchNormalization"]
    computed = normalization((2, 5, 9))
    del computed.graph.initializer[0]
    arguments = onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, [5])
    computed.graph.input.append(arguments)
    assert kinds(apply_passes(computed, BatchNormToAffine())) == ["BatchNormalization"]
