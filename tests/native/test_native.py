# SPDX-License-Identifier: Apache-2.0
"""Tests of the native engine beyond single results: threads, instruction sets, memory."""

import contextlib
import ctypes
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cases import Case, assert_same_bits
from gil_release import releases_gil
from layouts import LAYOUTS, call, layouts, random_array
from places import ROOT

import anybit
from anybit import _native
from anybit._native import _core

LARGE = 1 << 20  # elements; enough for several threads


@pytest.mark.sample(16)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [(64, 64, 128), (4, 3, 87381), (8192, 8, 8), (3, 5, 7), (2, 300, 700), (512, 1, 1025)]
)
def test_elementwise_results_do_not_depend_on_threads_isa_and_layout(
    layout: str, shape: tuple[int, ...], set_threads: Callable[[int], None]
) -> None:
    """Compare with full-sized parameters, which take another path."""
    x = random_array(*shape)
    name, parameters, attributes = layouts(x)[layout]
    set_threads(1)
    full = [np.broadcast_to(parameter, x.shape).copy() for parameter in parameters]
    expected = getattr(anybit, name)(x, *full, **attributes)
    before = _core.isa()
    for isa in ("baseline", "avx2", "avx512"):
        try:
            _core.set_isa(isa)
        except ValueError:
            continue  # unsupported by this processor
        for count in (1, 2, 7):
            set_threads(count)
            assert_same_bits(call(x, layout), expected, Case(f"{isa} {count} threads", (x,)))
    _core.set_isa(before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_elementwise_results_do_not_depend_on_memory_order(layout: str) -> None:
    x = random_array(6, 10, 14)
    expected = call(x, layout)
    for name, other in {
        "fortran": np.asfortranarray(x),
        "transposed": x.transpose(2, 0, 1).copy().transpose(1, 2, 0),
        "reversed": x[::-1, :, ::-1].copy()[::-1, :, ::-1],
        "strided": np.repeat(np.repeat(x, 2, axis=0), 3, axis=2)[::2, :, ::3],
    }.items():
        assert_same_bits(call(other, layout), expected, Case(name, (x,)))
        out = np.zeros((14, 6, 10), np.float32).transpose(1, 2, 0)
        assert call(other, layout, out=out) is out
        assert_same_bits(out, expected, Case(f"{name} to a transposed array", (x,)))


def test_kernels_run_in_many_python_threads() -> None:
    x = random_array(LARGE)
    expected = anybit.int_quant(x, 0.3, 0, 4)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: anybit.int_quant(x, 0.3, 0, 4), range(32)))
    assert all(np.array_equal(result, expected) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_thread_pool_works_after_fork(set_threads: Callable[[int], None]) -> None:
    set_threads(4)
    x = random_array(LARGE)
    expected = anybit.int_quant(x, 0.3, 0, 4)
    code = (
        "import os, numpy as np, anybit; anybit.set_num_threads(4);"
        "x = np.ones(1 << 20, np.float32); anybit.int_quant(x, 0.3, 0, 4); child = os.fork();"
        "anybit.int_quant(x, 0.3, 0, 4); child or os._exit(0);"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0
    assert np.array_equal(anybit.int_quant(x, 0.3, 0, 4), expected)


def test_kernel_releases_gil(set_threads: Callable[[int], None]) -> None:
    set_threads(1)
    x = random_array(16 * LARGE)
    out = np.empty_like(x)
    assert releases_gil(lambda: anybit.int_quant(x, 0.3, 0, 4, out=out))


def test_python_sum_keeps_gil() -> None:
    numbers = list(range(LARGE))
    assert not releases_gil(lambda: sum(numbers), seconds=0.5)


@pytest.mark.parametrize("elements", [5_000, 3_000_000])
def test_process_exits_while_daemon_threads_compute(elements: int) -> None:
    code = f"""
import threading, time, numpy as np, anybit
x = np.ones({elements}, np.float32)
def work():
    while True:
        anybit.int_quant(x, 0.5, 0, 8)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernel_allocates_only_the_output(layout: str) -> None:
    """Bound the high-water mark of the process by the output plus 1 MiB."""
    code = f"""
import resource, numpy as np
from layouts import call, layouts
import anybit
x = np.ones((16, 512, 1024), np.float32)
name, parameters, attributes = layouts(x)["{layout}"]
call(x[:2, :2, :8], "{layout}")
output_and_allowance = np.ones(x.nbytes + (1 << 20), np.uint8)
del output_and_allowance
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = getattr(anybit, name)(x, *parameters, **attributes)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    if sys.platform != "linux":
        pytest.skip("ru_maxrss has other units elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 256  # KiB: the worker threads' own first pages


def test_kernels_do_not_depend_on_the_floating_point_environment() -> None:
    """Run the kernels in a thread that rounds upward."""
    x = np.array([1e-40, -3e-39, 2.5, 0.1, 1e-45], np.float32)
    expected = [anybit.int_quant(x, 1e-40, 0, 8), anybit.float_quant(x, 0.1, 4, 3, 7)]
    libm = ctypes.CDLL(None)
    upward = 0x800  # FE_UPWARD on x86
    if not hasattr(libm, "fesetround") or os.uname().machine != "x86_64":
        pytest.skip("needs the constants of x86-64 glibc")
    libm.fesetround(upward)
    try:
        got = [anybit.int_quant(x, 1e-40, 0, 8), anybit.float_quant(x, 0.1, 4, 3, 7)]
    finally:
        libm.fesetround(0)
    for actual, correct in zip(got, expected, strict=True):
        assert_same_bits(actual, correct, Case("rounding upward", (x,)))


def test_kernel_leaks_no_python_objects() -> None:
    x = random_array(64)
    for _ in range(10):
        anybit.int_quant(x, 0.3, 0, 4)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    counts = sys.getrefcount(x), sys.getrefcount(None)
    for _ in range(1000):
        anybit.int_quant(x, [0.3], np.float32(0), 4, out=x)
        with contextlib.suppress(ValueError):
            anybit.int_quant(x, 0.3, 0, 0)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
    assert abs(sys.getrefcount(x) - counts[0]) < 10
    assert abs(sys.getrefcount(None) - counts[1]) < 100


@pytest.mark.parametrize("named", [None, "baseline", "avx512"])
def test_isa_is_narrow_for_few_elements_unless_a_level_is_set(
    named: str | None, isas: list[str]
) -> None:
    if named and named not in isas:
        pytest.skip(f"this processor cannot run {named}")
    show = "from anybit._native import _core as c; print(c.isa(), *map(c.isa_for, (16, 1 << 20)))"
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={**os.environ, "ANYBIT_ISA": named or ""},
        capture_output=True,
        text=True,
        check=True,
    )
    best = done.stdout.split()[0]
    assert best == named if named else best not in isas[:-1]
    few = best if named or best == "baseline" else "avx2"
    assert done.stdout.split() == [best, few, best]


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ANYBIT_ISA", "sse9", "must be one of .*got 'sse9'"),
        ("ANYBIT_NUM_THREADS", "0", "must be .*got '0'"),
        ("ANYBIT_NUM_THREADS", "two", "must be .*got 'two'"),
    ],
)
def test_import_rejects_bad_environment_variables(variable: str, value: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import anybit; anybit.num_threads()"],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(f"{variable}.*{message}", done.stderr)


@pytest.mark.parametrize("count", [0, -3, 5000])
def test_set_num_threads_rejects_bad_counts(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        anybit.set_num_threads(count)


def test_spread_takes_arguments_in_a_tuple_and_a_dict() -> None:
    kernel = _native.get_kernel("int_quant")
    spread = _native.get_spread_variant(kernel)
    x = np.float32([0.7, 1.4, -7.0])
    expected = kernel(x, 0.5, 0, 4, rounding_mode="FLOOR")
    out = np.empty_like(x)
    inputs, attributes = (x, 0.5, 0, 4), {"rounding_mode": "FLOOR"}
    assert spread(inputs, attributes, ("out",), out) is out
    assert out.tolist() == expected.tolist() == [0.5, 1.0, -4.0]
    assert spread(inputs[:2], {"zeropt": 0} | attributes, ("bitwidth",), 4).tolist() == out.tolist()
    back = _native.get_spread_variant(_native.get_backward_kernel("int_quant"))
    (gradient,) = back((np.ones_like(x), *inputs), attributes, ("requested",), ["x"])
    assert gradient.tolist() == [1, 1, 0]
    wrong = [(), (inputs, attributes), (list(inputs), {}, ()), (inputs, [], ()), (inputs, {}, [])]
    for arguments in (*wrong, (inputs, {}, ("out",)), (inputs, {}, (), out), ((x,) * 99, {}, ())):
        with pytest.raises(TypeError, match="positional, attributes, names"):
            spread(*arguments)
    with pytest.raises(TypeError, match="no argument 'scales'"):
        spread(inputs, {"scales": 1}, ())
    for attributes, names in (({1: out}, ()), ({}, (1,))):
        with pytest.raises(TypeError, match="names that are strings, got 1"):
            spread(inputs, attributes, names, *[out] * len(names))
