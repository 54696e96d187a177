# SPDX-License-Identifier: Apache-2.0
"""Checks of JAX arrays on two devices; run by tests/jax/test_functions.py."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import anybit
import anybit.jax

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map

mesh = Mesh(np.array(jax.devices()), ("d",))
x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
scale = np.linspace(0.1, 0.6, 6, dtype=np.float32)
expected = anybit.int_quant(x, scale, 0, 4)
by_rows, by_columns, everywhere = PartitionSpec("d"), PartitionSpec(None, "d"), PartitionSpec()


def quantize(x: Any, scale: Any) -> Any:
    return anybit.jax.int_quant(x, scale, 0, 4)


def mapped(function: Any, inputs: Any, outputs: Any) -> Any:
    return jax.jit(shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs))


def loss(x: Any, scale: Any) -> Any:
    return (quantize(x, scale) ** 2).sum()


assert len(jax.devices()) == 2
# Only x varies over the devices; x and the scale; only the scale.
assert (mapped(quantize, (by_rows, everywhere), by_rows)(x, scale) == expected).all()
assert (mapped(quantize, (by_columns, PartitionSpec("d")), by_columns)(x, scale) == expected).all()
halves = mapped(quantize, (everywhere, by_rows), by_rows)(x[:, :3], scale.reshape(2, 3))
correct = [anybit.int_quant(x[:, :3], half, 0, 4) for half in scale.reshape(2, 1, 3)]
assert (np.asarray(halves) == np.concatenate(correct)).all()

# A replicated scale gets the sum of the devices' gradients. Summing two halves rounds once more,
# by at most a rounding error of the largest term.
total = mapped(
    lambda x, scale: jax.lax.psum(loss(x, scale), "d"), (by_rows, everywhere), everywhere
)
gradients = jax.grad(total, (0, 1))(x, scale)
alone = jax.grad(loss, (0, 1))(x, scale)
assert (gradients[0] == alone[0]).all()
assert np.abs(gradients[1] - alone[1]).max() <= np.abs(alone[1]).max() * 2.0**-22

# Without shard_map: XLA gathers the array, but the result is the same.
placed = jax.device_put(x, NamedSharding(mesh, by_rows))
assert (jax.jit(quantize)(placed, scale) == expected).all()
