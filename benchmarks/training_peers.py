# SPDX-License-Identifier: Apache-2.0
"""Speed of quantizers in training relative to other libraries.

Ours and a peer compute the forward pass, and forward and backward, of one tensor in turns. Both
allocate outputs and gradients, as in training. The lower bound of time is a clone of x for the
forward pass, and clones of x and of the gradient for both passes. Peers that are not installed are
skipped and named.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from _measure import arguments, best_times, machine, show, versions

import anybit
import anybit.torch

Function = Callable[[torch.Tensor], torch.Tensor]
CHANNELS = 64
E4M3 = anybit.formats.float8_e4m3fn


class Contest(NamedTuple):
    """Two functions that compute the same, a peer's and ours, with their names."""

    peer: str
    ours: str
    peer_function: Function
    our_function: Function


def leaf(values: torch.Tensor) -> torch.Tensor:
    """Return a copy that requires a gradient."""
    return values.clone().requires_grad_()


def scales() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a per-tensor scale, and per-channel scales of dimension 1."""
    generator = torch.Generator().manual_seed(0)
    return torch.tensor(0.1), torch.rand(CHANNELS, generator=generator) * 0.4 + 0.05


def fake_quantize() -> list[Contest]:
    scale, channel_scales = scales()
    column = channel_scales.reshape(-1, 1)
    zero, zeros = torch.tensor(0, dtype=torch.int32), torch.zeros(CHANNELS, dtype=torch.int32)
    learned, our_learned = leaf(scale.reshape(1)), leaf(scale)
    float_zero = torch.zeros(1)
    return [
        Contest(
            "torch.fake_quantize_per_tensor_affine",
            "int_quant",
            lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero, -8, 7),
            lambda x: anybit.torch.int_quant(x, scale, 0, 4),
        ),
        Contest(
            "torch.fake_quantize_per_channel_affine",
            "int_quant, per-channel",
            lambda x: torch.fake_quantize_per_channel_affine(x, channel_scales, zeros, 1, -8, 7),
            lambda x: anybit.torch.int_quant(x, column, 0, 4),
        ),
        Contest(
            "torch's learnable fake quantizer",
            "int_quant, learned scale",
            lambda x: torch._fake_quantize_learnable_per_tensor_affine(
                x, learned, float_zero, -8, 7, 1.0
            ),
            lambda x: anybit.torch.int_quant(x, our_learned, 0, 4),
        ),
    ]


def brevitas_int_quant() -> Callable[..., torch.Tensor]:
    """Create Brevitas' signed integer quantizer, a function of scale, zero-point, bits and x."""
    from brevitas.core.function_wrapper import Identity, RoundSte, TensorClamp
    from brevitas.core.quant import IntQuant

    return IntQuant(
        float_to_int_impl=RoundSte(),
        tensor_clamp_impl=TensorClamp(),
        input_view_impl=Identity(),
        signed=True,
        narrow_range=False,
    )


def brevitas() -> list[Contest]:
    from brevitas.core.quant import BinaryQuant
    from brevitas.core.scaling import ConstScaling
    from brevitas.nn import QuantIdentity
    from brevitas.quant.experimental.float_quant_ocp import Fp8e4m3OCPActPerTensorFloat

    scale, channel_scales = scales()
    column = channel_scales.reshape(-1, 1)
    zero, bits = torch.tensor(0.0), torch.tensor(4.0)
    quantizer = brevitas_int_quant()
    sign = BinaryQuant(scaling_impl=ConstScaling(0.1))
    float8 = QuantIdentity(act_quant=Fp8e4m3OCPActPerTensorFloat, return_quant_tensor=False).eval()
    learned, our_learned = leaf(scale), leaf(scale)
    return [
        Contest(
            "Brevitas IntQuant",
            "int_quant",
            lambda x: quantizer(scale, zero, bits, x),
            lambda x: anybit.torch.int_quant(x, scale, 0, 4),
        ),
        Contest(
            "Brevitas IntQuant, per-channel",
            "int_quant, per-channel",
            lambda x: quantizer(column, zero, bits, x),
            lambda x: anybit.torch.int_quant(x, column, 0, 4),
        ),
        Contest(
            "Brevitas IntQuant, learned scale",
            "int_quant, learned scale",
            lambda x: quantizer(learned, zero, bits, x),
            lambda x: anybit.torch.int_quant(x, our_learned, 0, 4),
        ),
        Contest(
            "Brevitas float8 e4m3",
            "float_quant",
            float8,
            lambda x: anybit.torch.float_quant(x, scale, *E4M3),
        ),
        Contest(
            "Brevitas BinaryQuant",
            "bipolar_quant",
            lambda x: sign(x)[0],
            lambda x: anybit.torch.bipolar_quant(x, scale),
        ),
    ]


def torchao() -> list[Contest]:
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer

    peer = IntxFakeQuantizer(IntxFakeQuantizeConfig(torch.int4, "per_channel", is_symmetric=True))
    ours = anybit.torch.nn.IntQuantizer(4, granularity="per-channel", axis=0, scale="absmax")
    return [
        Contest(
            "torchao IntxFakeQuantizer, per row",
            "IntQuantizer, absmax per row",
            lambda x: peer(x.reshape(CHANNELS, -1)),
            lambda x: ours(x.reshape(CHANNELS, -1)),
        )
    ]


def gfloat() -> list[Contest]:
    from gfloat import round_ndarray
    from gfloat.formats import format_info_ocp_e4m3

    scale, _ = scales()
    compiled = torch.compile(lambda x: round_ndarray(format_info_ocp_e4m3, x, sat=True))
    return [
        Contest(
            "gfloat e4m3 under torch.compile",
            "float_quant",
            compiled,
            lambda x: anybit.torch.float_quant(x, scale, *E4M3),
        )
    ]


def contests() -> list[Contest]:
    """Return the contests with all peers that are installed."""
    result = []
    for peer in (fake_quantize, brevitas, torchao, gfloat):
        try:
            result += peer()
        except ImportError as error:
            print(f"skipped: {error.name} is not installed")
    return result


def row_of(contest: Contest, x: torch.Tensor, rounds: int) -> tuple[str, ...]:
    """Time both sides, in units of the lower bound."""
    trained = leaf(x)
    gradient = torch.randn_like(contest.our_function(x))
    forward = best_times(
        {
            "copy": x.clone,
            "peer": lambda: contest.peer_function(x),
            "ours": lambda: contest.our_function(x),
        },
        rounds,
    )

    def copies() -> None:
        x.clone()
        gradient.clone()

    def step(function: Function) -> Callable[[], None]:
        def run() -> None:
            trained.grad = None
            function(trained).backward(gradient)

        return run

    both = best_times(
        {
            "copy": copies,
            "peer": step(contest.peer_function),
            "ours": step(contest.our_function),
        },
        rounds,
    )
    cells = [contest.peer, contest.ours]
    for times in (forward, both):
        cells += [
            f"{times['peer'] / times['copy']:.1f}",
            f"{times['ours'] / times['copy']:.2f}",
            f"{times['peer'] / times['ours']:.1f} x",
        ]
    return tuple(cells)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=16 << 20, help="elements of x")
    parser.add_argument("--threads", type=int, default=1, help="number of threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # deprecation warnings of peers
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.elements // CHANNELS // 64, CHANNELS, 64, generator=generator)
    rows = [row_of(contest, x, options.rounds) for contest in contests()]
    packages = versions("torch", "brevitas", "torchao", "gfloat")
    print(f"{machine()}; {anybit._native.isa()}; {packages}")
    columns = (
        *("peer", "ours", "peer, forward", "ours, forward", "speedup"),
        *("peer, both passes", "ours, both passes", "speedup"),
    )
    title = (
        f"{options.elements >> 10} Ki float32, {options.threads} thread(s), "
        "in units of one clone, and of two"
    )
    show(title, columns, rows, options.markdown)


if __name__ == "__main__":
    main()
