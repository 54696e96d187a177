# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of post-training quantization."""

import pytest
from onnx_ir.passes import PassResult

from anybit.onnx.passes import FuseLayerNorm


@pytest.fixture
def unfused_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep primitive operators of a layer normalization, as of forms that no pass recognizes."""
    monkeypatch.setattr(FuseLayerNorm, "call", lambda self, model: PassResult(model, False))
