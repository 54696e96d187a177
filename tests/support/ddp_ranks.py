# SPDX-License-Identifier: Apache-2.0
"""Work of the processes of `torch/test_ddp.py`, which import it by its name."""

from typing import Any

import torch

from anybit.torch import nn

RANKS = 2
SECONDS = 120


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        nn.QuantConv2d(
            1, 4, 3,
            weight_quantizer=nn.quantizer("int4 per-channel narrow"),
            bias_quantizer=nn.quantizer("int8"),
            input_quantizer=nn.quantizer("uint8 power-of-two"),
        ),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        nn.QuantLinear(
            64, 3,
            weight_quantizer=nn.quantizer("float4_e2m1fn"),
            input_quantizer=nn.quantizer("uint4 per-channel"),
        ),
    )  # fmt: skip


def batch() -> tuple[Any, Any]:
    """Return inputs whose first half is smaller: the ranks see different ranges."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(8, 1, 6, 6, generator=generator)
    return x * torch.tensor([1.0, 3.0]).repeat_interleave(4).reshape(8, 1, 1, 1), (
        torch.arange(8) % 3
    )


def loss_of(model: Any, rows: slice) -> Any:
    x, classes = batch()
    return torch.nn.functional.cross_entropy(model(x[rows]), classes[rows])


def rows_of(rank: int) -> slice:
    return slice(4 * rank, 4 * rank + 4)


def run_rank(rank: int, folder: str) -> None:
    """Run one rank, and write its results to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    results: dict[str, Any] = {}
    model = network()
    local = network()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    loss_of(parallel, rows_of(rank)).backward()
    results["start"] = {name: value.clone() for name, value in model.state_dict().items()}
    results["gradients"] = {name: value.grad.clone() for name, value in model.named_parameters()}
    optimizer.step()
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(parallel, rows_of(rank)).backward()
        optimizer.step()
    results["end"] = dict(model.named_parameters())
    results["averages"] = averages(rank)
    torch.distributed.destroy_process_group()
    # What this rank would have started with, had it been alone.
    local(batch()[0][rows_of(rank)])
    results["alone"] = local.state_dict()
    torch.save(results, f"{folder}/{rank}.pt")


def averages(rank: int) -> list[float]:
    """Return a moving average after three steps; the largest input is 15 on rank 0, 30 on 1."""
    layer = nn.QuantLinear(2, 1, input_quantizer=nn.quantizer("uint4 ema"))
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    results = []
    for _ in range(3):
        parallel(torch.full((1, 2), 15.0 * (rank + 1))).sum().backward()
        results.append(layer.input_quantizer.scale.value.item())
    return results
