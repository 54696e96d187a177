# SPDX-License-Identifier: Apache-2.0
"""The kernels under JAX against the jitted references: what XLA makes of the same formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _measure import arguments, best_times, machine, show, versions

import anybit.jax
from anybit.ops import OPERATORS

BY_NAME = {operator.name: operator for operator in OPERATORS}
CALLS: tuple[tuple[str, str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("IntQuant, 8 bits", "int_quant", (0.1, 0.0, 8), {}),
    ("IntQuant, HALF_UP", "int_quant", (0.1, 0.0, 8), {"rounding_mode": "HALF_UP"}),
    ("FloatQuant, e4m3", "float_quant", (1.0, 4, 3, 7, 448.0), {}),
    ("Trunc", "trunc", (0.1, 0.0, 8, 0.4, 4), {}),
    ("BipolarQuant", "bipolar_quant", (0.5,), {}),
)


def row(call: tuple[Any, ...], x: Any, rounds: int) -> tuple[str, ...]:
    title, name, parameters, attributes = call
    given = [jnp.asarray(value) for value in parameters]

    def programs(function: Any) -> tuple[Any, Any]:
        forward = jax.jit(lambda x, *given: function(x, *given, **attributes))
        loss = jax.grad(lambda x, scale: forward(x, scale, *given[1:]).sum(), (0, 1))
        return forward, jax.jit(loss)

    kernel, of_kernel = programs(getattr(anybit.jax, name))
    reference, _ = programs(BY_NAME[name].reference)
    copy = jax.jit(lambda x: -x)
    times = best_times(
        {
            "copy": lambda: copy(x).block_until_ready(),
            "kernel": lambda: kernel(x, *given).block_until_ready(),
            "reference": lambda: reference(x, *given).block_until_ready(),
            "both": lambda: jax.block_until_ready(of_kernel(x, given[0])),
        },
        rounds,
    )
    return (
        title,
        f"{times['kernel'] * 1e3:.1f} ms",
        f"{times['reference'] / times['kernel']:.2f} x",
        f"{times['kernel'] / times['copy']:.2f} x",
        f"{times['both'] / times['copy']:.2f} x",
    )


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    x = jnp.asarray(np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32))
    show(
        f"16 Mi float32, {machine()}, {versions('jax', 'jaxlib')}",
        ("call", "kernel", "reference / kernel", "kernel / negation", "gradients / negation"),
        [row(call, x, options.rounds) for call in CALLS],
        options.markdown,
    )


if __name__ == "__main__":
    main()
