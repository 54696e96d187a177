# SPDX-License-Identifier: Apache-2.0
"""Compiled and exported programs: one graph, the same bits, errors while tracing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cases import assert_same_bits, every_case, expected_result  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch_backend import as_array, as_tensors, compile_function, is_traceable  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import OPERATORS  # noqa: E402

Tensor = torch.Tensor
# Inductor compiles C++, which takes seconds.
BACKENDS = ("aot_eager", pytest.param("inductor", marks=pytest.mark.slow))
NAMES = [operator.name for operator in OPERATORS]

# PyTorch's compiler uses parts of PyTorch that PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_functions_equal_eager_on_case_rows(name: str) -> None:
    """Some rows in one program of generated code. `test_cases` traces rows of every form."""
    rows = [row for operator, row in every_case() if operator == name and row.raises is None]
    step = len(rows) // 8 + 1
    rows = [row for row in rows[::step] if is_traceable(row.inputs)]
    function = getattr(anybit.torch, name)
    tensors = [as_tensors(row.inputs) for row in rows]

    def program() -> list[Tensor]:
        return [
            function(*inputs, **row.attributes) for inputs, row in zip(tensors, rows, strict=True)
        ]

    with compile_function(program, "inductor") as run:
        results = run()
    for row, result in zip(rows, results, strict=True):
        assert_same_bits(as_array(result), expected_result(name, row), row)


class Network(torch.nn.Module):
    """Quantizers between other work, with learned and with constant parameters."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(8, 6, generator=generator))
        self.scale = torch.nn.Parameter(torch.full((8, 1), 0.25))
        self.step = torch.nn.Parameter(torch.tensor(0.5))
        self.bits = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        weight = anybit.torch.int_quant(self.weight, self.scale, 0, self.bits, narrow=True)
        y = anybit.torch.int_quant(x, scale=self.step, zeropt=3.0, bitwidth=4, signed=False)
        y = torch.relu(y @ weight.t())
        y = anybit.torch.float_quant(y, 0.5, 4, 3, 7, rounding_mode="HALF_UP")
        y = anybit.torch.trunc(y, 0.5, 0, 8, 2.0, 4)
        return y + anybit.torch.bipolar_quant(y, self.step)


def trained_once(network: Network, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    network.zero_grad()
    x = x.detach().clone().requires_grad_()
    result = run(x)
    result.sum().backward()
    return [result.detach(), x.grad, *(parameter.grad for parameter in network.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_training_with_changing_batches(backend: str) -> None:
    """Forward and backward in one graph each; another batch size does not compile anew."""
    network = Network()
    sizes = (4, 7, 5)
    generator = torch.Generator().manual_seed(2)
    # Dyadic numbers: sums are exact in any order.
    batches = [torch.randint(-16, 16, (size, 6), generator=generator) / 4 for size in sizes]
    network.weight.data = network.weight.data.mul(4).round().div(4)
    for batch in batches:
        torch._dynamo.maybe_mark_dynamic(batch, 0)
    counter = CompileCounterWithBackend(backend)
    expected = [trained_once(network, network, batch) for batch in batches]
    with compile_function(network, counter, dynamic=True) as run:
        compilations = set()
        for batch, reference in zip(batches, expected, strict=True):
            for one, other in zip(trained_once(network, run, batch), reference, strict=True):
                assert torch.equal(one, other)
            compilations.add(counter.frame_count)
    assert len(compilations) == 1


def test_compiled_functions_accept_every_number() -> None:
    """Convert numbers in a traced program as in eager mode."""
    x = torch.linspace(-4, 4, 33)
    wide = x.double()
    calls = [
        lambda: anybit.torch.int_quant(x, 0.1, 0, 4),
        lambda: anybit.torch.int_quant(wide, 0.1, 0.3, 4),
        lambda: anybit.torch.int_quant(x.half(), 0.1, 0, 2**70),
        lambda: anybit.torch.int_quant(x, 1e39, True, 4.0, signed=1),
        lambda: anybit.torch.int_quant(x, 3.4028235e38, -(2**60) - 1, 2000.0),
        lambda: anybit.torch.int_quant(x, [0.1] * 33, [0], [4]),
        lambda: anybit.torch.int_quant(wide, [0.1] * 33, np.float32(0.1), np.array(4)),
        lambda: anybit.torch.float_quant(x, 0.1, 3, 2, -1, None, rounding_mode="floor"),
        lambda: anybit.torch.float_quant(x, 0.1, 3, 2, 3, max_val=2.5),
        lambda: anybit.torch.float_quant(
            x, 0.1, 3, 2, 3, rounding_mode=anybit.RoundingMode.HALF_DOWN
        ),
        lambda: anybit.torch.dynamic_quantize(x, [0.1], 3, dtype=torch.uint8),
        lambda: anybit.torch.dynamic_quantize(x, 0.1, dtype="int8"),
    ]
    with compile_function(lambda: [call() for call in calls]) as run:
        results = run()
    for call, result in zip(calls, results, strict=True):
        torch.testing.assert_close(result, call(), rtol=0, atol=0, equal_nan=True)


def test_compiled_functions_write_out() -> None:
    x = torch.linspace(-4, 4, 9)
    expected = anybit.torch.int_quant(x, 0.5, 0, 3)
    with compile_function(lambda x, out: anybit.torch.int_quant(x, 0.5, 0, 3, out=out)) as run:
        for values in (x, x.clone().requires_grad_()):
            out = torch.empty(9)
            run(values, out)
            assert torch.equal(out, expected)
        out.sum().backward()
    assert values.grad.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_with_a_dynamic_batch(strict: bool) -> None:
    network = Network().eval()
    x = torch.randn(4, 6)
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: batch},), strict=strict)
    targets = [str(node.target) for node in program.graph.nodes if "anybit" in str(node.target)]
    assert targets == [
        f"anybit.{name}.default"
        for name in ("int_quant", "int_quant", "float_quant", "trunc", "bipolar_quant")
    ]
    for size in (1, 4, 9):
        values = torch.randn(size, 6)
        assert torch.equal(program.module()(values), network(values))


def test_compiled_functions_with_unbacked_sizes() -> None:
    """Use a number of selected elements that depends on values."""
    x = torch.linspace(-4, 4, 30).reshape(10, 3)

    def program(x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return anybit.torch.int_quant(rows, rows.abs() + 1, torch.zeros(3), 4)

    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        compile_function(program) as run,
    ):
        assert torch.equal(run(x), program(x))


BAD_CALLS: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "x_of_int": (lambda x: anybit.torch.int_quant(x.int(), 1, 0, 4), TypeError, "x .* int32"),
    "scale": (
        lambda x: anybit.torch.int_quant(x, torch.ones(3), 0, 4),
        ValueError,
        r"scale of shape \(3,\) does not broadcast to x of shape \(2,\)",
    ),
    "mode": (
        lambda x: anybit.torch.int_quant(x, 1, 0, 4, rounding_mode="NEAREST"),
        ValueError,
        "NEAREST",
    ),
    "number": (lambda x: anybit.torch.int_quant(x, 1, 0, 2.5), ValueError, r"2\.5"),
    "axis": (
        lambda x: anybit.torch.dynamic_quantize(x, 1.0, qtype="per_channel", axis=3),
        ValueError,
        r"axis must be in \[-1, 0\]",
    ),
    "device": (
        lambda x: anybit.torch.int_quant(x, torch.ones((), device="meta"), 0, 4),
        ValueError,
        "scale must be on x's device cpu, got meta",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_compiled_functions_check_arguments_while_tracing(name: str) -> None:
    call, error, pattern = BAD_CALLS[name]
    with pytest.raises(error, match=pattern):
        call(torch.ones(2))
    with compile_function(call) as run, pytest.raises(Exception, match=pattern):
        run(torch.ones(2))


def test_compiled_functions_check_values_at_run_time() -> None:
    with compile_function(lambda x, bits: anybit.torch.int_quant(x, 1, 0, bits)) as run:
        run(torch.ones(2), torch.tensor(4.0))
        with pytest.raises(ValueError, match=r"bitwidth must be an integer >= 1, got 2\.5"):
            run(torch.ones(2), torch.tensor(2.5))


def test_compiled_functions_refuse_missing_gradients() -> None:
    width = torch.tensor(4.0, requires_grad=True)
    call = lambda x: anybit.torch.float_quant(x, 1, width, 3, 7)  # noqa: E731
    with (
        compile_function(call) as run,
        pytest.raises(Exception, match=r"exponent_bitwidth.*detach"),
    ):
        run(torch.ones(2))
