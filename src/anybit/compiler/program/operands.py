# SPDX-License-Identifier: Apache-2.0
"""Sources and targets of instructions: tensors of codes, and arrays of float32."""

from anybit.compiler.program import program as p

_WRITES_FLOATS = (
    *(p.Dequantize, p.Elementwise, p.DynamicScale, p.DynamicZero),
    *(p.Softmax, p.LayerNorm, p.SpatialMean, p.BlockProduct, p.AsymmetricBlockProduct),
)


def list_tensor_sources(at: p.Instruction) -> tuple[int, ...]:
    """Return the tensors that an instruction reads."""
    match at:
        case p.Combine() | p.Add() | p.Multiply() | p.MatMul():
            return at.first, at.second
        case p.Product() | p.MaxPool() | p.Lookup() | p.Gather() | p.Reshape() | p.Dequantize():
            return (at.source,)
        case p.BlockProduct() | p.AsymmetricBlockProduct():
            return (at.source,)
        case _:
            return ()


def list_float_sources(at: p.Instruction) -> tuple[int, ...]:
    """Return the arrays of float32 that an instruction reads; missing ones are -1."""
    match at:
        case p.Quantize() | p.DynamicScale() | p.Softmax() | p.LayerNorm() | p.SpatialMean():
            return (at.source,)
        case p.Elementwise():
            return at.first, at.second
        case p.DynamicZero():
            return at.source, at.scale
        case p.DynamicQuantize():
            return at.source, at.scale, at.zero
        case p.BlockProduct() | p.AsymmetricBlockProduct():
            return (at.zero,)
        case _:
            return ()


def writes_floats(at: p.Instruction) -> bool:
    """Return whether the target of an instruction is one of floats."""
    has_floats = isinstance(getattr(at, "epilogue", None), p.Arithmetic)
    return isinstance(at, _WRITES_FLOATS) or has_floats
