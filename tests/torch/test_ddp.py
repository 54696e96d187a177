# SPDX-License-Identifier: Apache-2.0
"""Two processes that train one model: DistributedDataParallel over gloo, on one machine."""

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ddp_ranks import RANKS, SECONDS, loss_of, network, run_rank  # noqa: E402  after the check for torch

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of the processes."""
    folder: Path = tmp_path_factory.mktemp("ddp")
    processes = torch.multiprocessing.spawn(run_rank, (str(folder),), nprocs=RANKS, join=False)
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, f"not done after {SECONDS} seconds"
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def test_ddp_initializes_learned_scales_with_the_mean(ranks: Any) -> None:
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


def test_ddp_gradients_equal_the_joint_batch(ranks: Any) -> None:
    """Up to the order of sums."""
    model = network()
    model.load_state_dict(ranks[0]["start"])
    loss_of(model, slice(None)).backward()
    for name, value in model.named_parameters():
        one, other = (rank["gradients"][name] for rank in ranks)
        assert torch.equal(one, other), name
        assert bool(one.any()), name
        assert torch.allclose(one, value.grad, rtol=1e-4, atol=1e-7), name


def test_ddp_parameters_are_equal_on_all_ranks(ranks: Any) -> None:
    moved = 0
    for name, value in ranks[0]["end"].items():
        assert torch.equal(value, ranks[1]["end"][name]), name
        moved += not torch.equal(value, ranks[0]["start"][name])
    assert moved == len(ranks[0]["end"])


def test_ddp_moving_averages_equal_rank_0(ranks: Any) -> None:
    """Continue on each rank from the state of rank 0, with its own batch."""
    assert ranks[0]["averages"] == [1.0, 1.0, 1.0]
    assert ranks[1]["averages"] == pytest.approx([2.0, 1.1, 1.1])
