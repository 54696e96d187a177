# SPDX-License-Identifier: Apache-2.0
"""Array-library support of the references: namespaces, compute types, checked parameters.

The compute type is float64 for float64 arrays and float32 for float32, float16 and bfloat16.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anybit.ops.domain import Domain

# From 2.1 on, NumPy has all functions of the array API.
_NUMPY_IS_COMPLETE = hasattr(np, "cumulative_sum")

Place = Callable[[Any, Any, str, dict[str, Any]], Any]


def is_foreign(x: Any) -> bool:
    """Return whether x is an array of a library other than NumPy."""
    if isinstance(x, np.ndarray | np.generic | int | float | list | tuple):
        return False
    from array_api_compat import is_array_api_obj

    return bool(is_array_api_obj(x))


def convert_to_array(x: Any) -> Any:
    return x if is_foreign(x) else np.asarray(x)


def get_namespace(x: Any) -> Any:
    """Return the array-API namespace of x."""
    if isinstance(x, np.ndarray | np.generic) and _NUMPY_IS_COMPLETE:
        return np  # the compatible namespace imports all of NumPy: 0.3 s
    from array_api_compat import array_namespace

    return array_namespace(x)


def _get_dtype_name(x: Any) -> str:
    # float16 and bfloat16 are not part of the array API; libraries only agree on their names.
    return str(x.dtype).rpartition(".")[2]


def _is_bfloat16(x: Any) -> bool:
    return _get_dtype_name(x) == "bfloat16"


def _is_floating(x: Any) -> bool:
    return _is_bfloat16(x) or bool(get_namespace(x).isdtype(x.dtype, "real floating"))


def get_device(x: Any) -> Any:
    """Return the device of x; None for NumPy, whose arrays have none before version 2."""
    if isinstance(x, np.ndarray | np.generic):
        return None
    from array_api_compat import device

    return device(x)


def get_compute_dtype(x: Any) -> Any:
    """Return the dtype of computations with x: float32 or float64."""
    xp = get_namespace(x)
    return xp.float64 if x.dtype == xp.float64 else xp.float32


def get_integer_dtype(xp: Any) -> Any:
    """Return int64, or int32 for libraries without it: JAX, unless 64 bits are enabled."""
    return xp.int64 if _has_64_bits(xp) else xp.int32


def get_integer_limit(xp: Any) -> int:
    """Return a power of two such that sums of two integers within it do not overflow."""
    return 62 if _has_64_bits(xp) else 30


def _has_64_bits(xp: Any) -> bool:
    # The other libraries support 64 bits on any device; JAX warns and uses 32.
    if getattr(xp, "__name__", None) != "jax.numpy":
        return True
    return "int64" in xp.__array_namespace_info__().dtypes()


def cast(x: Any, dtype: Any) -> Any:
    """Return x in another dtype: one of the array API, bfloat16 or float16."""
    if isinstance(x, np.ndarray) or _is_bfloat16(x):
        return x.astype(dtype) if hasattr(x, "astype") else x.to(dtype)
    return get_namespace(x).astype(x, dtype)


def widen(x: Any, domain: Domain, name: str) -> Any:
    """Return x in its compute type, exactly. TypeError for an unsupported dtype."""
    check_x(x, domain, name)
    return cast(x, get_compute_dtype(x))


def check_x(x: Any, domain: Domain, name: str) -> None:
    """Raise TypeError for an unsupported dtype."""
    if _get_dtype_name(x) not in domain.dtypes:
        raise TypeError(f"{name} must be {domain.description}, got {x.dtype}")


def deliver(result: Any, x: Any, out: Any) -> Any:
    """Return the result in the dtype of x, in `out` if passed; integers stay as they are."""
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


def convert_parameter(value: Any, domain: Domain, x: Any, name: str) -> Any:
    """Return one parameter as an array on x's device, in the compute type or as integers.

    Raises TypeError for values that are not real numbers and ValueError for those outside the
    domain.
    """
    xp = get_namespace(x)
    values = convert_values(value, domain, name)
    if domain.integer:
        return _move_to_device(convert_to_integers(values), xp, get_integer_dtype(xp), x)
    return _move_to_device(values, xp, get_compute_dtype(x), x)


def convert_values(value: Any, domain: Domain, name: str) -> Any:
    """Return the parameter as an array of its own dtype, with the checks of `convert_parameter`.

    Unknown values, of traced arrays, are not checked.
    """
    values = np.asarray(value) if not is_foreign(value) else value
    kinds = ("real floating", "integral", "bool")
    other = (
        hasattr(value, "dtype") and domain.dtypes and _get_dtype_name(values) not in domain.dtypes
    )
    if other or not (_is_bfloat16(values) or get_namespace(values).isdtype(values.dtype, kinds)):
        raise TypeError(f"{name} must be {domain.description}, got dtype {values.dtype}")
    if domain.integer or domain.minimum > -math.inf:
        check_values(values, domain, name)
    return values


def convert_to_integers(values: Any) -> Any:
    """Return whole numbers as the widest integers, clipped to the limit of meaningful values."""
    host = get_namespace(values)
    limit = 2 ** get_integer_limit(host)
    if not _has_64_bits(host) and not host.isdtype(values.dtype, "real floating"):
        # Conversion through float32 would round; smaller types are within the limit.
        if values.dtype in (host.int32, host.uint32):
            lowest = 0 if host.isdtype(values.dtype, "unsigned integer") else -limit
            values = host.clip(values, lowest, limit)
        return cast(values, host.int32)
    wide = cast(values, host.float64 if _has_64_bits(host) else host.float32)
    # The cast itself must not wrap.
    return cast(host.clip(wide, -float(limit), float(limit)), get_integer_dtype(host))


def _move_to_device(values: Any, xp: Any, dtype: Any, x: Any) -> Any:
    """Return `values` as an array of x's library on x's device."""
    if is_foreign(values):
        return cast(values, dtype)
    if isinstance(x, np.ndarray):
        return values.astype(dtype)
    # NumPy rounds to the compute type: float64 and float32 have the same name in every library.
    return xp.asarray(
        values.astype(_get_dtype_name(xp.empty(0, dtype=dtype))), dtype=dtype, device=get_device(x)
    )


def check_values(values: Any, domain: Domain, name: str) -> None:
    """Raise ValueError for the first value outside the domain; unknown values pass."""
    xp = get_namespace(values)
    wide = cast(values, xp.float64) if _has_64_bits(xp) else values
    wrong = (wide < float(domain.minimum)) | (wide > float(domain.maximum))
    if xp.isdtype(wide.dtype, "real floating"):
        wrong = wrong | xp.isnan(wide)
        if domain.integer:
            wrong = wrong | xp.isinf(wide) | (wide != xp.floor(wide))
    try:
        outside = bool(xp.any(wrong))
    except TypeError:  # traced: values are known when the program runs
        return
    if outside:
        raise ValueError(f"{name} must be {domain.description}, got {float(wide[wrong][0]):.17g}")


def make_broadcastable(value: Any, x: Any, name: str, attributes: dict[str, Any]) -> Any:
    """Return the parameter, if it broadcasts to x without enlarging it; else raise ValueError.

    Unknown sizes and shapes (None, in traced arrays) pass.
    """
    del attributes  # NumPy's rule needs none
    if value.shape is None or x.shape is None:
        return value
    shape, expected = tuple(value.shape), tuple(x.shape)
    trailing = expected[len(expected) - len(shape) :]
    if len(shape) > len(expected) or any(
        size not in (whole, 1) and size is not None and whole is not None
        for size, whole in zip(shape, trailing, strict=True)
    ):
        raise ValueError(f"{name} of shape {shape} does not broadcast to x of shape {expected}")
    return value
