# SPDX-License-Identifier: Apache-2.0
"""Tensors in place, through DLPack's functions in C, and PyTorch versions that have none."""

import pytest

pytest.importorskip("torch")

import torch

import anybit.torch
from anybit._native import _core
from anybit.torch.dispatch import direct

X = torch.tensor([0.5, 1.4, -7.0])


def test_pytorch_without_functions_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.10 PyTorch has no `__dlpack_c_exchange_api__`: arrays take its place."""
    monkeypatch.setattr(direct, "_EXCHANGE", None)
    call = direct.direct_call(anybit.int_quant.operator, lambda ctx, gradient: ())
    x, scale = (each.clone().requires_grad_() for each in (X, torch.tensor([0.5])))
    for dtype in (torch.float32, torch.bfloat16):
        result = call((x.to(dtype), scale, 0, 4), {"narrow": True})
        expected = anybit.torch.int_quant(x.to(dtype), scale, 0, 4, narrow=True)
        assert torch.equal(result, expected)
        found = torch.autograd.grad(result.sum(), (x, scale))
        assert all(map(torch.equal, found, torch.autograd.grad(expected.sum(), (x, scale))))


def test_tensors_in_place_are_dense_and_real() -> None:
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        pytest.skip("this PyTorch has no functions in C")
    out = torch.empty(3)
    for other in (X.to_sparse(), X.to("meta"), X.to(torch.complex64), [1.0], None):
        with pytest.raises(TypeError, match="x must be a dense tensor of real numbers on the CPU"):
            _core.int_quant(other, 0.5, 0, 4, out=out, exchange=exchange)
    with pytest.raises(ValueError, match="out must have shape"):
        _core.int_quant(X, 0.5, 0, 4, out=torch.empty(2), exchange=exchange)
    with pytest.raises(TypeError, match="no argument 'exchange'"):
        anybit.int_quant(X.numpy(), 0.5, 0, 4, exchange=None)
