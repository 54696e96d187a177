# SPDX-License-Identifier: Apache-2.0
"""Constants of a graph: values that are fixed before it runs."""

from hashlib import sha256
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit.arrays import Array as Array
from anybit.errors import ModelError

Content: TypeAlias = tuple[str, tuple[int, ...], bytes]


def is_constant(value: ir.Value) -> bool:
    """Return whether a value is an initializer that no input can replace."""
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def read_array(value: ir.Value) -> Array:
    """Return the array of a constant; memory-mapped if it lies in a file.

    Raises:
        ModelError: The tensor cannot be read.
    """
    assert value.const_value is not None, "asked for constants only"
    try:
        array = value.const_value.numpy()
    except Exception as error:  # onnx_ir has no error class of its own
        raise ModelError(f"tensor {value.name!r} cannot be read: {error}") from error
    # onnx_ir marks the byte order, which yields another dtype: convert to the usual one.
    return np.asarray(array, dtype=array.dtype.type)


def follows_from_constants(value: ir.Value) -> bool:
    """Return whether a value is a constant, or is computed from constants alone."""
    return is_constant(value) or find_unfolded_node(value) is not None


def find_unfolded_node(value: ir.Value) -> ir.Node | None:
    """Return the first node of those that compute a value from constants alone.

    None for constants, and for values that depend on an input, a random number or a branch.
    """
    first = None
    waiting, visited = [value], set[ir.Value]()
    while waiting:
        computed = waiting.pop()
        if computed in visited or is_constant(computed):
            continue
        visited.add(computed)
        node = computed.producer()
        if node is None or any(isinstance(a.value, ir.Graph) for a in node.attributes.values()):
            return None
        operands = [operand for operand in node.inputs if operand is not None]
        if not operands and node.op_type != "Constant":
            return None
        waiting += operands
        if all(map(is_constant, operands)):
            first = node
    return first


def make_constant(name: str | None, tensor: ir.TensorProtocol) -> ir.Value:
    """Create a value that holds a tensor, to be registered in a graph.

    `ir.Tensor(array)` takes a tenth of the time of `ir.tensor`, which inspects its argument.
    """
    return ir.Value(
        name=name,
        const_value=tensor,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
    )


def are_powers_of_two(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return which numbers are 2^k for an integer k."""
    return np.asarray(np.frexp(values)[0] == 0.5)


def load_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor with its external data read into memory."""
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)


def make_content_key(array: Array) -> Content:
    """Return a short key that arrays of the same dtype, shape and bits share."""
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.dtype.name, array.shape, sha256(raw.data).digest()
