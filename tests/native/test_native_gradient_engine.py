# SPDX-License-Identifier: Apache-2.0
"""Tests of the native gradients beyond single results: threads, memory, errors."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case, assert_same_bits
from gil_release import releases_gil
from gradient_calls import backward, exact_arguments

from anybit._native import _core

WORK = {
    "per_tensor": ((300_007,), ()),
    "rows": ((3000, 64), (3000, 1)),
    "middle": ((50, 64, 64), (64, 1)),
    "last": ((5000, 48), (48,)),
    "short_rows": ((30_000, 9), (30_000, 1)),
    "many_rows": ((40_000, 16), (40_000, 1)),
    "many_shared": ((7, 30_000), (30_000,)),
    "per_element": ((3, 50_000), (3, 50_000)),
}


@pytest.mark.parametrize("work", WORK)
def test_gradient_does_not_depend_on_threads_and_isa(
    work: str, set_threads: Callable[[int], None], isas: list[str]
) -> None:
    shape, scale_shape = WORK[work]
    random = np.random.default_rng(0)
    x, gradient = random.normal(0, 3, (2, *shape)).astype(np.float32)
    scale = random.uniform(0.2, 1, scale_shape).astype(np.float32)
    results: list[list[bytes]] = []
    for isa in isas:
        _core.set_isa(isa)
        for count in (1, 2, 3):
            set_threads(count)
            for number, (operator, *inputs, mode) in enumerate(
                (
                    ("int_quant", x, scale, 0.5, 4, "ROUND"),
                    ("int_quant", x, scale, 0.5, 4, "HALF_UP"),
                    ("float_quant", x, scale, 2, 1, 1, 3.0, "ROUND"),
                    ("float_quant", x, scale, 2, 0, 1, 3.0, "ROUND"),
                    ("trunc", np.rint(x / scale) * scale, scale, 0, 8, scale * 4, 3, "FLOOR"),
                )
            ):
                names = _core.descriptions[operator]["differentiable"]
                parts = backward(operator, gradient, *inputs, requested=names, rounding_mode=mode)
                results.append([bytes([number]), *(part.tobytes() for part in parts)])
    for other in results:
        assert other == next(first for first in results if first[0] == other[0])


@pytest.mark.parametrize("inputs", [["x"], ["x", "scale"], ["x", "scale", "zeropt"]])
@pytest.mark.parametrize("work", WORK)
def test_gradient_does_not_depend_on_rounding_mode_without_rounding(
    work: str, inputs: list[str], isas: list[str]
) -> None:
    """Check the order of addition, too: sums of float32 gradients depend on it."""
    shape, scale_shape = WORK[work]
    random = np.random.default_rng(0)
    scale = (2.0 ** random.integers(-2, 2, scale_shape)).astype(np.float32)
    x = (scale * random.integers(-12, 12, shape)).astype(np.float32)  # some are clipped
    gradient = random.normal(0, 3, shape).astype(np.float32)
    for isa in isas:
        _core.set_isa(isa)
        first, *others = (
            backward("int_quant", gradient, x, scale, 0, 4, requested=inputs, rounding_mode=mode)
            for mode in ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
        )
        assert all(part.any() for part in first)
        for other in others:
            assert [part.tobytes() for part in other] == [part.tobytes() for part in first]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", ["int_quant", "float_quant", "trunc", "trunc_v1"])
def test_gradient_does_not_depend_on_other_requested_gradients(
    operator: str, dtype: type[np.floating], isas: list[str]
) -> None:
    """Run all rounding modes: they share loops for the gradients that they have in common."""
    random = np.random.default_rng(0)
    scale = random.uniform(0.2, 1, (30, 1)).astype(dtype)
    x, gradient = random.normal(0, 3, (2, 30, 70)).astype(dtype)
    inputs = {
        "int_quant": (0.5, 4),
        "float_quant": (2, 1, 1, 3.0),
        "trunc": (0.5, 8, scale * 4, 3),
        "trunc_v1": (0.5, 8, 3),
    }[operator]
    names = _core.descriptions[operator]["differentiable"]
    for isa in isas:
        _core.set_isa(isa)
        for mode in ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN"):
            call = (operator, gradient, x, scale, *inputs)
            together = backward(*call, requested=names, rounding_mode=mode)
            assert all(part.any() for part in together)
            for count in (1, 2):
                some = backward(*call, requested=names[:count], rounding_mode=mode)
                assert [part.tobytes() for part in some] == [
                    part.tobytes() for part in together[:count]
                ]


def test_gradient_is_written_to_out() -> None:
    gradient, x, scale, _ = exact_arguments((40, 6), (6,), ())
    (correct,) = backward("int_quant", gradient, x, scale, 0, 4, requested=["x"])
    case = Case("out", (x,))
    spaced = np.zeros((6, 80), np.float32).T[::2]
    assert backward("int_quant", gradient, x, scale, 0, 4, requested=["x"], out=spaced)[0] is spaced
    assert_same_bits(spaced.copy(), correct, case)
    for place in (0, 1):  # in place of the gradient and of x
        call = [gradient.copy(), x.copy()]
        backward("int_quant", *call, scale, 0, 4, requested=["x"], out=call[place])
        assert_same_bits(call[place], correct, case)
    for place in (0, 1):  # an overlap that would be read after it is written
        memory = np.zeros(300, np.float32)
        call = [gradient.copy(), x.copy()]
        shifted = memory[:240].reshape(40, 6)
        shifted[...] = call[place]
        call[place] = shifted
        out = memory[1:241].reshape(40, 6)
        backward("int_quant", *call, scale, 0, 4, requested=["x"], out=out)
        assert_same_bits(out.copy(), correct, case)


X = np.ones((2, 3), np.float32)
FAULTS: dict[str, tuple[tuple, dict[str, Any], type[Exception], str]] = {
    "other_shape": ((X[:1], X, 1.0, 0, 4), {}, ValueError, r"shape of x, \(2, 3\), got \(1, 3\)"),
    "other_rank": ((X[0], X, 1.0, 0, 4), {}, ValueError, r"got \(3,\)"),
    "integers": ((X.astype(np.int32), X, 1.0, 0, 4), {}, TypeError, "gradient must be .*int32"),
    "complex": ((X.astype(complex), X, 1.0, 0, 4), {}, TypeError, "gradient.*complex128"),
    "unknown": (
        (X, X, 1.0, 0, 4),
        {"requested": ["size"]},
        ValueError,
        "x, scale, zeropt, got 'size'",
    ),
    "width": ((X, X, 1.0, 0, 4), {"requested": ["bitwidth"]}, ValueError, "got 'bitwidth'"),
    "no_name": ((X, X, 1.0, 0, 4), {"requested": [3]}, ValueError, "got 3"),
    "twice": ((X, X, 1.0, 0, 4), {"requested": ["x", "x"]}, ValueError, "'x' twice"),
    "too_many": ((X, X, 1.0, 0, 4, 5), {}, TypeError, "at most 5 positional arguments, got 6"),
    "no_x": ((X,), {}, TypeError, "misses the argument 'x'"),
    "no_scale": ((X, X), {}, TypeError, "misses the argument 'scale'"),
    "mode": ((X, X, 1.0, 0, 4), {"rounding_mode": "NO"}, ValueError, "got 'NO'"),
    "bits": ((X, X, 1.0, 0, 0), {}, ValueError, "bitwidth must be an integer >= 1, got 0"),
    "scale": ((X, X, np.ones(2), 0, 4), {}, ValueError, r"scale of shape \(2,\)"),
    "x": ((X, X.astype(int), 1.0, 0, 4), {}, TypeError, "x must be float32"),
    "out_shape": ((X, X, 1.0, 0, 4), {"out": X[0]}, ValueError, r"out must have shape \(2, 3\)"),
    "out_dtype": ((X, X, 1.0, 0, 4), {"out": X.astype(float)}, ValueError, "got .*float64"),
    "out_of_none": (
        (X, X, 1.0, 0, 4),
        {"requested": ["scale"], "out": X.copy()},
        ValueError,
        "not requested",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_gradient_rejects_bad_arguments(fault: str) -> None:
    arguments, options, error, pattern = FAULTS[fault]
    with pytest.raises(error, match=pattern):
        backward("int_quant", *arguments, **{"requested": ["x"], **options})


def test_gradient_of_omitted_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="'max_val', which is not given"):
        backward("float_quant", X, X, 1.0, 4, 3, 7, requested=["max_val"])
    with pytest.raises(TypeError, match="misses the argument 'requested'"):
        backward("float_quant", X, X, 1.0, 4, 3, 7)


def test_gradient_of_no_input_is_an_empty_list() -> None:
    assert backward("int_quant", X, X, 1.0, 0, 4, requested=()) == []


def test_gradient_takes_parameters_by_keyword() -> None:
    gradients = backward("int_quant", X, X, scale=0.3, zeropt=0, bitwidth=4, requested=["scale"])
    assert gradients == backward("int_quant", X, X, 0.3, 0, 4, requested=["scale"])


@pytest.mark.parametrize("scale_shape", ["()", "(512, 1)", "(1024,)", "(16, 1, 1)"])
def test_gradient_allocates_only_the_output(scale_shape: str) -> None:
    """Bound the high-water mark of the process by the gradient of x plus 2 MiB."""
    if sys.platform != "linux":
        pytest.skip("ru_maxrss has other units elsewhere")
    code = f"""
import resource, numpy as np
from anybit._native import _core
x = np.ones((16, 512, 1024), np.float32)
scale = np.ones({scale_shape}, np.float32)
_core.int_quant_backward(x[:1], x[:1], 1.0, 0, 4, requested=["x", "scale"])
output_and_allowance = np.ones(x.nbytes + (2 << 20), np.uint8)
del output_and_allowance
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gradients = _core.int_quant_backward(x, x, scale, 0, 4, requested=["x", "scale"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 256  # KiB: the worker threads' own first pages


def test_limit_threads_holds_for_the_calling_thread() -> None:
    assert _core.limit_threads(1) == 0
    try:
        seen = []
        other = threading.Thread(target=lambda: seen.append(_core.limit_threads(0)))
        other.start()
        other.join()
        assert seen == [0]
        assert _core.limit_threads(3) == 1
    finally:
        assert _core.limit_threads(0) in (1, 3)
    with pytest.raises(ValueError, match="-1"):
        _core.limit_threads(-1)


@pytest.mark.parametrize(
    "call",
    ["int_quant(x, 0.3, 0, 4)", "int_quant_backward(x, x, 0.3, 0, 4, requested=['x', 'scale'])"],
)
def test_limit_threads_limits_the_pool(call: str) -> None:
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts the threads that Linux lists")
    code = f"""
import os, numpy as np
from anybit._native import _core
count = lambda: len(os.listdir("/proc/self/task"))
x = np.ones(1 << 20, np.float32)
before = count()
_core.limit_threads(1)
_core.{call}
limited = count()
_core.limit_threads(0)
_core.{call}
print(limited - before, count() - limited)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ANYBIT_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0", "2"]


def test_gradient_releases_gil(set_threads: Callable[[int], None]) -> None:
    set_threads(1)
    x = np.ones(1 << 24, np.float32)
    names = ["x", "scale"]
    assert releases_gil(lambda: backward("int_quant", x, x, 0.3, 0, 4, requested=names, out=x))
