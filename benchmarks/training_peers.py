# SPDX-License-Identifier: Apache-2.0
"""How much faster do quantizers train than those that people use today?

Forward, and forward with backward, of one tensor through ours and through each peer, in turns. The
result and the gradients are allocated by each side, as in training. The yardstick is a clone of x
for the forward pass, and clones of x and of the gradient for both: nothing that touches them can be
faster. Peers that are not installed are left out and named.
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
    """A peer, and our call that does the same."""

    peer: str
    ours: str
    theirs: Function
    our: Function


def leaf(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


def scales() -> tuple[torch.Tensor, torch.Tensor]:
    """One scale, and one per channel of dimension 1."""
    generator = torch.Generator().manual_seed(0)
    return torch.tensor(0.1), torch.rand(CHANNELS, generator=generator) * 0.4 + 0.05


def fake_quantize() -> list[Contest]:
    one, many = scales()
    along = many.reshape(-1, 1)
    zero, zeros = torch.tensor(0, dtype=torch.int32), torch.zeros(CHANNELS, dtype=torch.int32)
    learned, our_learned = leaf(one.reshape(1)), leaf(one)
    float_zero = torch.zeros(1)
    return [
        Contest(
            "torch.fake_quantize_per_tensor_affine",
            "int_quant",
            lambda x: torch.fake_quantize_per_tensor_affine(x, one, zero, -8, 7),
            lambda x: anybit.torch.int_quant(x, one, 0, 4),
        ),
        Contest(
            "torch.fake_quantize_per_channel_affine",
            "int_quant, per-channel",
            lambda x: torch.fake_quantize_per_channel_affine(x, many, zeros, 1, -8, 7),
            lambda x: anybit.torch.int_quant(x, along, 0, 4),
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


def brevitas() -> list[Contest]:
    from brevitas.core.function_wrapper import Identity, RoundSte, TensorClamp
    from brevitas.core.quant import BinaryQuant, IntQuant
    from brevitas.core.scaling import ConstScaling
    from brevitas.nn import QuantIdentity
    from brevitas.quant.experimental.float_quant_ocp import Fp8e4m3OCPActPerTensorFloat

    one, many = scales()
    along = many.reshape(-1, 1)
    zero, bits = torch.tensor(0.0), torch.tensor(4.0)
    quantizer = IntQuant(
        float_to_int_impl=RoundSte(),
        tensor_clamp_impl=TensorClamp(),
        input_view_impl=Identity(),
        signed=True,
        narrow_range=False,
    )
    sign = BinaryQuant(scaling_impl=ConstScaling(0.1))
    float8 = QuantIdentity(act_quant=Fp8e4m3OCPActPerTensorFloat, return_quant_tensor=False).eval()
    learned, our_learned = leaf(one), leaf(one)
    return [
        Contest(
            "Brevitas IntQuant",
            "int_quant",
            lambda x: quantizer(one, zero, bits, x),
            lambda x: anybit.torch.int_quant(x, one, 0, 4),
        ),
        Contest(
            "Brevitas IntQuant, per-channel",
            "int_quant, per-channel",
            lambda x: quantizer(along, zero, bits, x),
            lambda x: anybit.torch.int_quant(x, along, 0, 4),
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
            lambda x: anybit.torch.float_quant(x, one, *E4M3),
        ),
        Contest(
            "Brevitas BinaryQuant",
            "bipolar_quant",
            lambda x: sign(x)[0],
            lambda x: anybit.torch.bipolar_quant(x, one),
        ),
    ]


def torchao() -> list[Contest]:
    from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer

    theirs = IntxFakeQuantizer(IntxFakeQuantizeConfig(torch.int4, "per_channel", is_symmetric=True))
    ours = anybit.torch.nn.IntQuantizer(4, granularity="per-channel", axis=0, scale="absmax")
    return [
        Contest(
            "torchao IntxFakeQuantizer, per row",
            "IntQuantizer, absmax per row",
            lambda x: theirs(x.reshape(CHANNELS, -1)),
            lambda x: ours(x.reshape(CHANNELS, -1)),
        )
    ]


def gfloat() -> list[Contest]:
    from gfloat import round_ndarray
    from gfloat.formats import format_info_ocp_e4m3

    one, _ = scales()
    compiled = torch.compile(lambda x: round_ndarray(format_info_ocp_e4m3, x, sat=True))
    return [
        Contest(
            "gfloat e4m3 under torch.compile",
            "float_quant",
            compiled,
            lambda x: anybit.torch.float_quant(x, one, *E4M3),
        )
    ]


def contests() -> list[Contest]:
    found = []
    for peer in (fake_quantize, brevitas, torchao, gfloat):
        try:
            found += peer()
        except ImportError as error:
            print(f"left out: {error.name} is not installed")
    return found


def row_of(contest: Contest, x: torch.Tensor, rounds: int) -> tuple[str, ...]:
    """How many times longer than the yardstick each side takes, and the ratio of both."""
    trained = leaf(x)
    gradient = torch.randn_like(contest.our(x))
    forward = best_times(
        {
            "copy": x.clone,
            "peer": lambda: contest.theirs(x),
            "ours": lambda: contest.our(x),
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
        {"copy": copies, "peer": step(contest.theirs), "ours": step(contest.our)}, rounds
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
    parser = arguments(__doc__ or "")
    parser.add_argument("--elements", type=int, default=16 << 20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # peers announce what they deprecate
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(options.elements // CHANNELS // 64, CHANNELS, 64, generator=generator)
    rows = [row_of(contest, x, options.rounds) for contest in contests()]
    packages = versions("torch", "brevitas", "torchao", "gfloat")
    print(f"{machine()}; {anybit._native.isa()}; {packages}")
    columns = (
        "peer",
        "ours",
        "peer, forward",
        "ours, forward",
        "speedup",
        "peer, both passes",
        "ours, both passes",
        "speedup",
    )
    title = (
        f"{options.elements >> 10} Ki float32, {options.threads} thread(s), "
        "in units of one clone, and of two"
    )
    show(title, columns, rows, options.markdown)


if __name__ == "__main__":
    main()
