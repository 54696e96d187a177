# SPDX-License-Identifier: Apache-2.0
"""Tensors in place, through DLPack's functions in C."""

import pytest

pytest.importorskip("torch")

import torch

import anybit
from anybit._native import _core

X = torch.tensor([0.5, 1.4, -7.0])


def test_native_exchange_requires_dense_real_tensors() -> None:
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    out = torch.empty(3)
    for other in (X.to_sparse(), X.to("meta"), X.to(torch.complex64), [1.0], None):
        with pytest.raises(TypeError, match="x must be a dense tensor of real numbers on the CPU"):
            _core.int_quant(other, 0.5, 0, 4, out=out, exchange=exchange)
    with pytest.raises(ValueError, match="out must have shape"):
        _core.int_quant(X, 0.5, 0, 4, out=torch.empty(2), exchange=exchange)
    with pytest.raises(TypeError, match="no argument 'exchange'"):
        anybit.int_quant(X.numpy(), 0.5, 0, 4, exchange=None)
