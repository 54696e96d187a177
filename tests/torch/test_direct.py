# SPDX-License-Identifier: Apache-2.0
"""Plain CPU tensors go straight to the kernels, with the same results; all others do not."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from cases import Case, assert_same_bits, every_case
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_backend import as_array, as_tensors

import anybit.torch
from anybit import _native
from anybit.ops import OPERATORS
from anybit.torch.dispatch import direct, gpu

Call = Callable[[], Any]
NAMES = [operator.name for operator in OPERATORS]
DIFFERENTIABLE = {operator.name: operator.differentiable for operator in OPERATORS}
X = torch.tensor([0.5, 1.4, -7.0])
ASKED = direct.make_direct_call(anybit.int_quant.operator, lambda ctx, gradient: ())


@contextmanager
def dispatched() -> Iterator[None]:
    """Send all calls through the dispatcher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "plain_tensors", lambda inputs: None)
        yield


def is_direct(*inputs: Any) -> bool:
    return ASKED(inputs, {}) is not None


def outcome(call: Call) -> Any:
    """Return the result of a call: a tensor, or the text of its error."""
    try:
        return call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", NAMES)
def test_direct_results_equal_dispatcher(name: str) -> None:
    function = getattr(anybit.torch, name)
    for operator, case in every_case():
        if operator != name:
            continue
        inputs = as_tensors(case.inputs)
        result = outcome(lambda: function(*inputs, **case.attributes))  # noqa: B023
        with dispatched():
            expected = outcome(lambda: function(*inputs, **case.attributes))  # noqa: B023
        if isinstance(expected, str):
            assert result == expected
        else:
            assert result.stride() == expected.stride()
            assert_same_bits(as_array(result), as_array(expected), case)


@pytest.mark.parametrize("name", [name for name in NAMES if DIFFERENTIABLE[name]])
def test_direct_gradients_equal_dispatcher(name: str) -> None:
    rows = [case for operator, case in every_case() if operator == name and not case.raises]
    for case in rows[::3]:
        inputs = as_tensors(case.inputs)
        result = gradients(name, inputs, case.attributes)
        with dispatched():
            expected = gradients(name, inputs, case.attributes)
        for ours, other in zip(result, expected, strict=True):
            assert ours.stride() == other.stride()
            assert_same_bits(as_array(ours), as_array(other), case)


def gradients(name: str, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    leaves = list(inputs)
    declared = getattr(anybit, name).operator.inputs
    for place, value in enumerate(inputs):
        real = isinstance(value, torch.Tensor) and value.is_floating_point()
        if real and declared[place].name in DIFFERENTIABLE[name]:
            leaves[place] = value.detach().requires_grad_()
    result = getattr(anybit.torch, name)(*leaves, **attributes)
    learned = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return torch.autograd.grad(result, learned, torch.full_like(result, 0.75))


@pytest.mark.parametrize(
    "scale",
    [0.1, 1, True, 2**53 + 1, 2**62 + 1, 2**64 + 1, -0.0, 1e-46, 3.5e38, -1e300, float("nan")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_direct_rounds_numbers_like_dispatcher(scale: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -3.0, 1e30, float("inf")], dtype=torch.float64).to(dtype)
    for bitwidth in (4, 4.0, True, 70, 2**65):
        result = anybit.torch.int_quant(x, scale, scale, bitwidth)
        with dispatched():
            expected = anybit.torch.int_quant(x, scale, scale, bitwidth)
        case = Case(f"bitwidth {bitwidth}", (x, scale))
        assert_same_bits(as_array(result), as_array(expected), case)


@pytest.mark.parametrize("learned", [False, True])
def test_direct_avoids_dispatcher(monkeypatch: pytest.MonkeyPatch, learned: bool) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(torch._ops.OpOverload, "__call__", refuse)
    x, scale = X.clone().requires_grad_(learned), torch.tensor([0.5])
    for inputs in (0.5, scale, torch.nn.Parameter(scale)):
        result = anybit.torch.int_quant(x, inputs, 0, 4, rounding_mode="FLOOR")
        if learned:
            result.sum().backward()
    with torch.inference_mode(), torch.autocast("cpu"):
        anybit.torch.int_quant(x, scale, 0, 4)
    with dispatched(), pytest.raises(AssertionError, match="asked"):
        anybit.torch.int_quant(x, scale, 0, 4)


def test_direct_caches_gpu_numbers_except_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create tensors for a captured graph, which the cache could free otherwise."""
    captured = False
    monkeypatch.setattr(gpu, "_current_stream", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    as_tensors = gpu._make_constant_converter(anybit.int_quant.operator)
    _, *first = as_tensors((X, 0.1, 0, 4))
    captured = True
    _, *of_graph = as_tensors((X, 0.1, 0, 4))
    captured = False
    _, *again = as_tensors((X, 0.1, 0, 4))
    for ours, other, graphs in zip(first, again, of_graph, strict=True):
        assert ours is other
        assert graphs is not ours
        assert torch.equal(graphs, ours)
    assert as_tensors((X, 0.1, 0.0, 4))[2] is not first[1]
    assert as_tensors((X, -0.0, 0, 4))[1].signbit()


def test_plain_tensors_requires_a_tensor_first() -> None:
    assert direct.plain_tensors((X, 0.5, None, True, 2**70)) == (X,)
    every = (X, torch.nn.Parameter(X))
    assert direct.plain_tensors(every) is every
    for inputs in ((0.5, X), [X], (X, [0.5]), (X, "0.5"), (X, X.numpy())):
        assert direct.plain_tensors(inputs) is None


@pytest.mark.parametrize("keys", [0b10, 2**64, 2**64 + 1, -1, "1"])
def test_plain_tensors_excludes_unknown_keys(keys: Any) -> None:
    def question(keys: Any, level: int = -1, watched: bool = False) -> Any:
        modes = SimpleNamespace(level=level)
        functions = (lambda tensor: keys, lambda: 0, lambda keys: keys, [0b1], (lambda: watched,))
        return _native.plain_tensors((torch.Tensor,), *functions, modes, "level")

    assert question(0b1)((X,)) == (X,)
    assert question(keys)((X,)) is None
    assert question(0b1, level=0)((X,)) is None
    assert question(0b1, watched=True)((X,)) is None


class Subclass(torch.Tensor):
    pass


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)


def fake() -> torch.Tensor:
    return FakeTensorMode().from_tensor(X)


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.as_subclass(Subclass),
        lambda: torch._neg_view(X),
        lambda: X.to("meta"),
        X.to_sparse,
        lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
        lambda: torch._to_functional_tensor(X),
        lambda: X.tolist(),
        X.numpy,
        lambda: X.to(torch.complex64),
        lambda: X.to(torch.int32),
        lambda: X.to(torch.float8_e4m3fn),
        lambda: torch.nn.UninitializedParameter(),
        jagged,
        fake,
    ],
)
def test_direct_leaves_other_tensors_to_dispatcher(make: Call) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = make()
    assert is_direct(X, 0.5, 0, 4)
    assert not is_direct(other, 0.5, 0, 4)
    if isinstance(other, torch.Tensor) and other.dtype != torch.int32:
        assert not is_direct(X, other, 0, 4)


@pytest.mark.parametrize(
    "parameters",
    [([0.5], 0, 4), (0.5, 0, torch.tensor(0)), (0.5, 0, 2.5), (torch.ones(2), 0, 4), (None, 0, 4)],
)
def test_direct_leaves_errors_and_conversions_to_dispatcher(parameters: tuple) -> None:
    assert not is_direct(X, *parameters)


class Through(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "watch",
    [
        Through,
        TorchFunctionMode,
        FakeTensorMode,
        torch.autograd.profiler.profile,
        torch.autograd.forward_ad.dual_level,
        lambda: torch.device("cpu"),
    ],
)
def test_direct_is_off_under_modes_and_hooks(watch: Call) -> None:
    with watch():
        assert not is_direct(X, 0.5, 0, 4)
    assert is_direct(X, 0.5, 0, 4)


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.vmap,
        torch.func.grad,
        torch.func.functionalize,
        lambda function: lambda x: torch.func.jvp(function, (x,), (x,)),
        lambda function: torch.jit.trace(function, X, check_trace=False),
        make_fx,
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_direct_is_off_under_transforms(transform: Callable[..., Any]) -> None:
    requested = []

    def function(x: torch.Tensor) -> torch.Tensor:
        requested.extend([is_direct(x, 0.5, 0, 4), is_direct(X, 0.5, 0, 4)])
        return x.sum()

    transform(function)(X)
    assert requested
    assert not any(requested)


def test_direct_is_off_under_profiler() -> None:
    with torch.autograd.profiler.profile() as profile:
        anybit.torch.int_quant(X, 0.5, 0, 4)
    assert "anybit::int_quant" in [event.name for event in profile.function_events]


def test_direct_is_off_while_compiling() -> None:
    traced = torch.export.export(Quantize(), (X,)).graph
    assert "anybit.int_quant.default" in [str(node.target) for node in traced.nodes]


class Quantize(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return anybit.torch.int_quant(x, 0.5, 0, 4)


def test_direct_leaves_batched_gradients_and_graphs_to_dispatcher() -> None:
    x = X.clone().requires_grad_()
    result = anybit.torch.int_quant(x, 0.5, 0, 4)
    assert result.grad_fn.name() == "DirectBackward"
    batch = torch.eye(3)
    (actual,) = torch.autograd.grad(result, x, batch, is_grads_batched=True, retain_graph=True)
    assert torch.equal(actual, torch.diag(torch.tensor([1.0, 1.0, 0.0])))
    (actual,) = torch.autograd.grad(result, x, torch.ones(3), create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        actual.sum().backward()
    with Through():
        (actual,) = torch.autograd.grad(anybit.torch.int_quant(x, 0.5, 0, 4).sum(), x)
    assert actual.tolist() == [1, 1, 0]


def test_direct_leaves_compiled_backward_to_dispatcher() -> None:
    """Leave compiled calls alone: a compiler would warn about the kernel."""
    x, scale = X.clone().requires_grad_(), torch.tensor(0.5, requires_grad=True)
    expected = torch.autograd.grad(anybit.torch.int_quant(x, scale, 0, 4).sum(), (x, scale))
    result = anybit.torch.int_quant(x, scale, 0, 4).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        result.backward()
    assert all(map(torch.equal, (x.grad, scale.grad), expected))


@pytest.mark.parametrize("needs", [(x, s, z) for x in (0, 1) for s in (0, 1) for z in (0, 1)][1:])
def test_direct_gradients_of_any_inputs(needs: tuple[int, ...]) -> None:
    """Compare gradients for all combinations of inputs that require one."""
    arguments = [X, torch.tensor([0.5]), torch.tensor([1.0])]
    inputs = [
        tensor.clone().requires_grad_(bool(need))
        for tensor, need in zip(arguments, needs, strict=True)
    ]
    leaves = [value for value in inputs if value.requires_grad]
    result = torch.autograd.grad(anybit.torch.int_quant(*inputs, 4).sum(), leaves)
    with dispatched():
        expected = torch.autograd.grad(anybit.torch.int_quant(*inputs, 4).sum(), leaves)
    assert all(map(torch.equal, result, expected))


def test_direct_saves_the_same_tensors_as_dispatcher() -> None:
    """Or a forward pass that is repeated in another mode would not fit its backward pass."""
    kept: list[list[int]] = []
    x, scale = X.clone().requires_grad_(), torch.tensor(0.5, requires_grad=True)
    for way in (ExitStack, dispatched):
        kept.append([])
        with (
            way(),
            torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: kept[-1].append(tensor.data_ptr()) or tensor, lambda tensor: tensor
            ),
        ):
            anybit.torch.int_quant(x, scale, 0, 4)
    assert kept == [[x.data_ptr(), scale.data_ptr()]] * 2


def test_direct_refuses_overwritten_tensors() -> None:
    x = X.clone().requires_grad_()
    scale = torch.tensor(0.5)
    result = anybit.torch.int_quant(x, scale, 0, 4)
    scale.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_direct_gradients_of_parameters_alone() -> None:
    scale, zeropt = (torch.tensor([value], requires_grad=True) for value in (0.5, 1.0))
    for leaves in ((scale,), (zeropt,), (scale, zeropt)):
        result = anybit.torch.int_quant(X, scale, zeropt, 4)
        actual = torch.autograd.grad(result.sum(), leaves)
        with dispatched():
            result = anybit.torch.int_quant(X, scale, zeropt, 4)
            expected = torch.autograd.grad(result.sum(), leaves)
        assert all(map(torch.equal, actual, expected))


PRIVATE = [
    (torch._C, "_dispatch_keys"),
    (torch._C, "_dispatch_tls_local_include_set"),
    (torch._C, "_len_torch_function_stack"),
    (torch._C, "DispatchKeySet"),
    (torch._C._autograd, "_profiler_enabled"),
    (torch.autograd.forward_ad, "_current_level"),
]


@pytest.mark.parametrize(("owner", "name"), PRIVATE, ids=[name for _, name in PRIVATE])
def test_direct_is_off_without_private_functions(owner: Any, name: str) -> None:
    """Another PyTorch need not have what the direct way asks: the module is made without it."""
    fresh = importlib.util.module_from_spec(importlib.util.find_spec(direct.__name__))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(owner, name)
        fresh.__spec__.loader.exec_module(fresh)
    call = fresh.make_direct_call(anybit.int_quant.operator, lambda ctx, gradient: ())
    assert direct.are_direct(X)
    assert not fresh.are_direct(X)
    assert call((X, 0.5, 0, 4), {}) is None
