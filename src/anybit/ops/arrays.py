# SPDX-License-Identifier: Apache-2.0
"""What the references need from an array library: namespaces, the compute type, checked parameters.

The compute type is float64 for float64 arrays and float32 for float32, float16 and bfloat16.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anybit.ops.domain import Domain

Place = Callable[[Any, Any, str, dict[str, Any]], Any]


def is_foreign(x: Any) -> bool:
    """Whether x is an array of a library other than NumPy."""
    if isinstance(x, np.ndarray | np.generic | int | float | list | tuple):
        return False
    from array_api_compat import is_array_api_obj

    return bool(is_array_api_obj(x))


def as_array(x: Any) -> Any:
    return x if is_foreign(x) else np.asarray(x)


def namespace(x: Any) -> Any:
    """The array-API namespace of x."""
    from array_api_compat import array_namespace

    return array_namespace(x)


def _dtype_name(x: Any) -> str:
    # float16 and bfloat16 are not part of the array API; libraries agree on the names only.
    return str(x.dtype).rpartition(".")[2]


def _is_bfloat16(x: Any) -> bool:
    return _dtype_name(x) == "bfloat16"


def _is_floating(x: Any) -> bool:
    return _is_bfloat16(x) or bool(namespace(x).isdtype(x.dtype, "real floating"))


def compute_type(x: Any) -> Any:
    """The dtype in which results for x are computed: float32 or float64."""
    xp = namespace(x)
    return xp.float64 if x.dtype == xp.float64 else xp.float32


def integer_type(xp: Any) -> Any:
    """int64, or int32 where a library has no wider one: JAX, unless 64 bits are switched on."""
    return xp.int64 if _has_64_bits(xp) else xp.int32


def integer_limit(xp: Any) -> int:
    """The exponent of a power of two such that sums of two integers within it do not overflow."""
    return 62 if _has_64_bits(xp) else 30


def _has_64_bits(xp: Any) -> bool:
    # Of the other libraries one may ask for 64 bits on any device; JAX warns and takes 32.
    if getattr(xp, "__name__", None) != "jax.numpy":
        return True
    return "int64" in xp.__array_namespace_info__().dtypes()


def cast(x: Any, dtype: Any) -> Any:
    """x in another dtype, be it one that the array API has or bfloat16 and float16."""
    if isinstance(x, np.ndarray) or _is_bfloat16(x):
        return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)
    return namespace(x).astype(x, dtype)


def widened(x: Any, domain: Domain, name: str) -> Any:
    """x in its compute type; exact. TypeError for a dtype that the operator does not take."""
    check_x(x, domain, name)
    return cast(x, compute_type(x))


def check_x(x: Any, domain: Domain, name: str) -> None:
    """TypeError for a dtype that the operator does not take."""
    if _dtype_name(x) not in domain.dtypes:
        raise TypeError(f"{name} must be {domain.description}, got {x.dtype}")


def delivered(result: Any, x: Any, out: Any) -> Any:
    """The result in x's dtype (where either is an integer it stays as it is), in `out` if given."""
    if isinstance(result, np.generic):  # NumPy turns 0-d arrays into scalars
        result = np.asarray(result)
    if _is_floating(result) and _is_floating(x) and result.dtype != x.dtype:
        result = cast(result, x.dtype)
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"out must have shape {tuple(result.shape)} and dtype {result.dtype}, "
            f"got {tuple(out.shape)} and {out.dtype}"
        )
    out[...] = result
    return out


def parameter(value: Any, domain: Domain, x: Any, name: str) -> Any:
    """One parameter as an array beside x: the compute type, or integers where they are asked for.

    Raises TypeError for what is not a real number and ValueError for values outside the domain.
    """
    xp = namespace(x)
    values = checked(value, domain, name)
    if domain.integer:
        return _beside(as_integers(values), xp, integer_type(xp), x)
    return _beside(values, xp, compute_type(x), x)


def checked(value: Any, domain: Domain, name: str) -> Any:
    """The parameter as an array of its own dtype. Raises what `parameter` raises.

    Values that are not known yet, in traced arrays, are not looked at.
    """
    values = np.asarray(value) if not is_foreign(value) else value
    kinds = ("real floating", "integral", "bool")
    other = hasattr(value, "dtype") and domain.dtypes and _dtype_name(values) not in domain.dtypes
    if other or not (_is_bfloat16(values) or namespace(values).isdtype(values.dtype, kinds)):
        raise TypeError(f"{name} must be {domain.description}, got dtype {values.dtype}")
    if domain.integer or domain.minimum > -math.inf:
        check_values(values, domain, name)
    return values


def as_integers(values: Any) -> Any:
    """Whole numbers as the widest integers. Beyond the limit all widths and biases are the same."""
    host = namespace(values)
    limit = 2 ** integer_limit(host)
    if not _has_64_bits(host) and not host.isdtype(values.dtype, "real floating"):
        # Going through float32 would round; smaller types than these are within the limit.
        if values.dtype in (host.int32, host.uint32):
            lowest = 0 if host.isdtype(values.dtype, "unsigned integer") else -limit
            values = host.clip(values, lowest, limit)
        return cast(values, host.int32)
    wide = cast(values, host.float64 if _has_64_bits(host) else host.float32)
    # The cast itself must not wrap.
    return cast(host.clip(wide, -float(limit), float(limit)), integer_type(host))


def _beside(values: Any, xp: Any, dtype: Any, x: Any) -> Any:
    """`values` as an array of x's library on x's device."""
    from array_api_compat import device

    if is_foreign(values):
        return cast(values, dtype)
    if isinstance(x, np.ndarray):
        return values.astype(dtype)
    # NumPy rounds to the compute type: float64 and float32 have the same name in every library.
    return xp.asarray(
        values.astype(_dtype_name(xp.empty(0, dtype=dtype))), dtype=dtype, device=device(x)
    )


def check_values(values: Any, domain: Domain, name: str) -> None:
    """ValueError for the first value outside the domain; values that are not known yet may fit."""
    xp = namespace(values)
    wide = cast(values, xp.float64) if _has_64_bits(xp) else values
    wrong = (wide < float(domain.minimum)) | (wide > float(domain.maximum))
    if xp.isdtype(wide.dtype, "real floating"):
        wrong = wrong | xp.isnan(wide)
        if domain.integer:
            wrong = wrong | xp.isinf(wide) | (wide != xp.floor(wide))
    try:
        found = bool(xp.any(wrong))
    except TypeError:  # traced: the values will be known when the program runs
        return
    if found:
        raise ValueError(f"{name} must be {domain.description}, got {float(wide[wrong][0]):.17g}")


def broadcastable(value: Any, x: Any, name: str, attributes: dict[str, Any]) -> Any:
    """The parameter as it is, if it broadcasts to x without enlarging it. ValueError otherwise.

    Sizes and shapes that are not known yet (None, in traced arrays) may fit.
    """
    del attributes  # NumPy's rule needs none
    if value.shape is None or x.shape is None:
        return value
    shape, wanted = tuple(value.shape), tuple(x.shape)
    trailing = wanted[len(wanted) - len(shape) :]
    if len(shape) > len(wanted) or any(
        size not in (whole, 1) and size is not None and whole is not None
        for size, whole in zip(shape, trailing, strict=True)
    ):
        raise ValueError(f"{name} of shape {shape} does not broadcast to x of shape {wanted}")
    return value
