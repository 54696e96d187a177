# SPDX-License-Identifier: Apache-2.0
"""Run passes on small models, and compare what the models compute."""

import numpy as np
import onnx
import onnx_ir as ir
from cleaned import assert_array_bits

from anybit.model import load
from anybit.onnx.passes import InferShapes, Normalize


def after(proto: onnx.ModelProto, *passes: ir.passes.InPlacePass) -> ir.Model:
    """Apply passes, and check that a second run changes nothing."""
    changed = ir.from_proto(proto)
    for each in (Normalize(), InferShapes(), *passes):
        each(changed)
    once = ir.to_proto(changed).SerializeToString(deterministic=True)
    again = changed.clone()
    for each in passes:
        each(again)
    if len(passes) == 1:
        assert ir.to_proto(again).SerializeToString(deterministic=True) == once
    return changed


def assert_bits(
    proto: onnx.ModelProto, changed: ir.Model, x: np.ndarray, given: np.ndarray | None = None
) -> None:
    """Both models compute the same bits. The second one may want x in another layout."""
    wanted = load(proto).run(x)
    got = load(ir.to_proto(changed)).run(x if given is None else given)
    assert wanted.keys() == got.keys()
    for name, array in wanted.items():
        assert_array_bits(got[name], array)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
