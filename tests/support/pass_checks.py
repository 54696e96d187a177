# SPDX-License-Identifier: Apache-2.0
"""Run passes on small models, and compare what the models compute."""

import numpy as np
import onnx
import onnx_ir as ir
from clean_checks import assert_array_bits

from anybit.model import load
from anybit.onnx.passes import InferShapes, Normalize


def apply_passes(proto: onnx.ModelProto, *passes: ir.passes.InPlacePass) -> ir.Model:
    """Apply passes, and check that a second run changes nothing."""
    changed = ir.from_proto(proto)
    for transform in (Normalize(), InferShapes(), *passes):
        transform(changed)
    once = ir.to_proto(changed).SerializeToString(deterministic=True)
    again = changed.clone()
    for transform in passes:
        transform(again)
    if len(passes) == 1:
        assert ir.to_proto(again).SerializeToString(deterministic=True) == once
    return changed


def assert_same_outputs(
    proto: onnx.ModelProto, changed: ir.Model, x: np.ndarray, changed_x: np.ndarray | None = None
) -> None:
    """Both models compute the same bits. The second one may want x in another layout."""
    expected = load(proto).run(x)
    got = load(ir.to_proto(changed)).run(x if changed_x is None else changed_x)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        assert_array_bits(got[name], array)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
