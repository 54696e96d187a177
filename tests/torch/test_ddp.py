# SPDX-License-Identifier: Apache-2.0
"""Two processes that train one model: DistributedDataParallel over gloo, on one machine."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from anybit.torch import nn  # noqa: E402  after the check for torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

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
    """The first half is smaller than the second, so that the ranks see other ranges."""
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


def work(rank: int, folder: str) -> None:
    """What one process does. It leaves what the test looks at in a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    found: dict[str, Any] = {}
    model = network()
    local = network()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    loss_of(parallel, rows_of(rank)).backward()
    found["start"] = {name: value.clone() for name, value in model.state_dict().items()}
    found["gradients"] = {name: value.grad.clone() for name, value in model.named_parameters()}
    optimizer.step()
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(parallel, rows_of(rank)).backward()
        optimizer.step()
    found["end"] = dict(model.named_parameters())
    found["averages"] = averages(rank)
    torch.distributed.destroy_process_group()
    # What this rank would have started with, had it been alone.
    local(batch()[0][rows_of(rank)])
    found["alone"] = local.state_dict()
    torch.save(found, f"{folder}/{rank}.pt")


def averages(rank: int) -> list[float]:
    """A moving average after each of three steps; the largest input is 15 on rank 0, 30 on 1."""
    layer = nn.QuantLinear(2, 1, input_quantizer=nn.quantizer("uint4 ema"))
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    found = []
    for _ in range(3):
        parallel(torch.full((1, 2), 15.0 * (rank + 1))).sum().backward()
        found.append(layer.input_quantizer.scale.value.item())
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the processes found."""
    folder: Path = tmp_path_factory.mktemp("ddp")
    processes = torch.multiprocessing.spawn(work, (str(folder),), nprocs=RANKS, join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, f"not done after {SECONDS} seconds"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_learned_scales_start_with_the_mean_of_the_ranks(ranks: Any) -> None:
    learned = [name for name, _ in network().named_parameters() if "quantizer" in name]
    assert len(learned) == 5
    for name in learned:
        one, other = (rank["start"][name] for rank in ranks)
        assert torch.equal(one, other), name
    # The ranks would have differed. What enters the second layer depends on the first scale.
    name = "0.input_quantizer.scale.threshold"
    alone = [rank["alone"][name] for rank in ranks]
    assert alone[1] > 2 * alone[0]
    assert torch.allclose(ranks[0]["start"][name], sum(alone) / RANKS, rtol=1e-6)


def test_gradients_are_those_of_the_joint_batch(ranks: Any) -> None:
    """Up to the order of sums."""
    model = network()
    model.load_state_dict(ranks[0]["start"])
    loss_of(model, slice(None)).backward()
    for name, value in model.named_parameters():
        one, other = (rank["gradients"][name] for rank in ranks)
        assert torch.equal(one, other), name
        assert bool(one.any()), name
        assert torch.allclose(one, value.grad, rtol=1e-4, atol=1e-7), name


def test_parameters_stay_the_same_on_all_ranks(ranks: Any) -> None:
    moved = 0
    for name, value in ranks[0]["end"].items():
        assert torch.equal(value, ranks[1]["end"][name]), name
        moved += not torch.equal(value, ranks[0]["start"][name])
    assert moved == len(ranks[0]["end"])


def test_moving_averages_are_those_of_rank_0(ranks: Any) -> None:
    """Each rank goes on from what rank 0 had before, with its own batch."""
    assert ranks[0]["averages"] == [1.0, 1.0, 1.0]
    assert ranks[1]["averages"] == pytest.approx([2.0, 1.1, 1.1])
