# SPDX-License-Identifier: Apache-2.0
"""Speed of the native kernels under JAX relative to the same formulas compiled by XLA.

The yardstick of both is the negation of an array.
"""

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
    """Time the kernel of one operator, its reference, and its gradients."""
    title, name, parameters, attributes = call
    inputs = [jnp.asarray(value) for value in parameters]

    def jit(function: Any) -> Any:
        return jax.jit(lambda x, *inputs: function(x, *inputs, **attributes))

    kernel, reference = jit(getattr(anybit.jax, name)), jit(BY_NAME[name].reference)
    gradients = jax.jit(
        jax.grad(lambda x, scale: kernel(x, scale, *inputs[1:]).sum(), argnums=(0, 1))
    )
    negation = jax.jit(lambda x: -x)
    times = best_times(
        {
            "negation": lambda: negation(x).block_until_ready(),
            "kernel": lambda: kernel(x, *inputs).block_until_ready(),
            "reference": lambda: reference(x, *inputs).block_until_ready(),
            "gradients": lambda: jax.block_until_ready(gradients(x, inputs[0])),
        },
        rounds,
    )
    return (
        title,
        f"{times['kernel'] * 1e3:.1f} ms",
        f"{times['reference'] / times['kernel']:.2f} x",
        f"{times['kernel'] / times['negation']:.2f} x",
        f"{times['gradients'] / times['negation']:.2f} x",
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=16 << 20, help="elements of the array")
    options = parser.parse_args()
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal(options.elements, dtype=np.float32))
    show(
        f"{options.elements >> 10} Ki float32, {machine()}, {versions('jax', 'jaxlib')}",
        ("call", "kernel", "reference / kernel", "kernel / negation", "gradients / negation"),
        [row(call, x, options.rounds) for call in CALLS],
        options.markdown,
    )


if __name__ == "__main__":
    main()
