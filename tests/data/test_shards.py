# SPDX-License-Identifier: Apache-2.0
"""Shards: the same bytes for any executor and cache."""

import pickle
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import parallel_tasks
import pytest
from float_models import NETWORKS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit import DataError
from anybit.data import dataset as samples_module
from anybit.data.array_files import StoredArray, write_members
from anybit.data.dataset import Dataset
from anybit.data.splits import is_held_out
from anybit.inputs import TensorInfo
from anybit.parallel import ThreadExecutor
from anybit.ptq import pipeline as driver
from anybit.ptq.calibration.calibration_stats import CalibrationStats
from anybit.ptq.calibration.collect import collect_stats, iterate_samples
from anybit.ptq.calibration.taps import ActivationTap
from anybit.ptq.config import DEFAULT
from anybit.ptq.context import Context, ignore_progress
from anybit.ptq.graph.targets import collect_activations, find_targets

X = TensorInfo("x", np.dtype(np.float32), ("rows", 4))
ROWS = random(100, 4)


def small() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x v", "h", domain=""),
        node("Relu", "h", "r", domain=""),
        node("MatMul", "r w", domain="", name="head"),
    ]
    constants = {"v": random(4, 8, seed=1), "w": random(8, 3, seed=2)}
    return model(nodes, constants, inputs={"x": ("n", 4)})


def quantize_network(
    name: str = "small", rows: int = 100, **options: Any
) -> anybit.QuantizationResult:
    network = small() if name == "small" else NETWORKS[name]()
    data = random(rows, 4) if name == "small" else data_for(name, rows)
    return anybit.quantize(network, data, **options)


def quantize_to_bytes(name: str = "small", rows: int = 100, **options: Any) -> tuple[bytes, Any]:
    """Return the model as bytes, and the report."""
    result = quantize_network(name, rows, **options)
    return ir.to_proto(result.model).SerializeToString(), result.to_json()


@pytest.mark.parametrize("name", ["convolutions", "small"])
def test_quantize_gives_the_same_bytes_with_threads(name: str) -> None:
    with parallel_tasks.num_threads(1):
        expected = quantize_to_bytes(name)
    with parallel_tasks.num_threads(7):
        assert quantize_to_bytes(name) == expected


@pytest.mark.parametrize(
    "options",
    [{"weights": "int4", "sensitivity": True}, {"budget": "25%bops", "rows": 40}],
    ids=["sensitivity", "budget"],
)
def test_quantize_gives_the_same_bytes_in_pickled_workers(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with parallel_tasks.num_threads(1):
        expected = quantize_to_bytes(**options)
    with parallel_tasks.num_threads(7):
        assert quantize_to_bytes(**options) == expected
    monkeypatch.setattr(driver, "open_executor", parallel_tasks.open_pickling_executor)
    assert quantize_to_bytes(**options) == expected


@pytest.mark.parametrize("rows", [4, 20, 60, 300])
@pytest.mark.parametrize("farthest", range(6))
def test_calibration_samples_are_disjoint(rows: int, farthest: int) -> None:
    config = replace(DEFAULT, calibration=replace(DEFAULT.calibration, most_times=1))
    data = random(rows, 4)
    data[[farthest * 7 % rows, farthest * 11 % rows]] += np.float32([[30], [20]])
    samples = Dataset(data, (X,))
    network = ir.from_proto(onnx.shape_inference.infer_shapes(small()))
    source = collect_activations(find_targets(network).layers)[0]
    ctx = Context(network, "m", samples, ThreadExecutor(), ignore_progress, config)
    stats = collect_stats(ctx, [source], ignore_progress)
    (result,) = iterate_samples(ctx, [source], stats, [source])
    compare, confirm, rounding = (
        {row.tobytes() for sample in part for row in sample["x"]}
        for part in (result.compare, result.confirm, result.rounding)
    )
    assert compare <= rounding
    assert not confirm & rounding
    judged = [row for number, row in enumerate(data) if not is_held_out(number)]
    largest = max(judged, key=lambda row: np.abs(row).max())
    assert largest.tobytes() in compare | confirm


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_of_all_networks_gives_the_same_bytes_in_pickled_workers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantize_to_bytes(name)
    monkeypatch.setattr(driver, "open_executor", parallel_tasks.open_pickling_executor)
    assert quantize_to_bytes(name) == expected


@pytest.mark.parametrize("size", [4, 12, 64])
def test_quantize_gives_the_same_bytes_for_any_shard_size(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantize_to_bytes()
    monkeypatch.setattr(samples_module, "_SHARD_SAMPLES", size)
    assert quantize_to_bytes() == expected


def forms(folder: Path) -> Iterator[Any]:
    yield ROWS
    yield ROWS.tolist()
    yield [{"x": part} for part in np.split(ROWS, [3, 40, 41])]
    yield ({"x": part} for part in np.split(ROWS, [3, 40, 41]))
    for name, save in (("a", np.savez), ("b", np.savez_compressed)):
        save(folder / f"{name}.npz", x=ROWS)
        yield folder / f"{name}.npz"
    np.save(folder / "c.npy", ROWS)
    yield str(folder / "c.npy")
    np.save(folder / "d.npy", np.asfortranarray(ROWS))
    yield folder / "d.npy"
    (folder / "parts").mkdir()
    for index, part in enumerate(np.split(ROWS, [30, 33, 97])):
        np.savez(folder / "parts" / f"{index}.npz", x=part)
    yield folder / "parts"


@pytest.mark.parametrize("near", [True, False])
def test_shard_is_readable_after_pickling(tmp_path: Path, near: bool) -> None:
    for form in forms(tmp_path):
        samples = Dataset(form, (X,))
        shards = [pickle.dumps(shard) for shard in samples.iterate_shards(near)]
        assert len(shards) == 7
        read = [sample for shard in shards for sample in pickle.loads(shard).read(lambda _: True)]
        assert [number for number, _ in read] == list(range(100))
        np.testing.assert_array_equal(np.concatenate([sample["x"] for _, sample in read]), ROWS)


def test_shards_keep_whole_items() -> None:
    samples = Dataset([ROWS, ROWS[:7]], (X,))
    samples.verify_row_independence(lambda *_: False)
    (shard,) = samples.iterate_shards()
    assert [sample["x"].shape for _, sample in shard.read(lambda _: True)] == [(100, 4), (7, 4)]


def test_shards_grow_with_the_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "_MAX_SHARDS", 2)
    assert [len(shard) for shard in Dataset(ROWS, (X,)).iterate_shards()] == [64, 36]


def test_shards_read_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random(4000, 4)
    np.savez_compressed(tmp_path / "a.npz", x=rows)
    np.save(tmp_path / "b.npy", rows)
    parts = tmp_path / "parts"
    parts.mkdir()
    for index, part in enumerate(np.split(rows, 200)):
        np.savez_compressed(parts / f"{index:03}.npz", x=part)
    read = []
    everything = StoredArray._read

    def counted(self: StoredArray, start: int, shape: tuple[int, ...]) -> Any:
        position = self._stream.tell() - self._header.start
        skipped = start - position if start >= position else start
        is_file = not isinstance(self._stream, zipfile.ZipExtFile)
        read.append(16 * shape[0] + (0 if is_file else max(skipped, 0)))
        return everything(self, start, shape)

    monkeypatch.setattr(StoredArray, "_read", counted)
    for path in (tmp_path / "a.npz", tmp_path / "b.npy", parts):
        samples = Dataset(path, (X,))
        read.clear()
        for shard in samples.iterate_shards():
            assert len(pickle.dumps(shard)) < 3000
            assert sum(1 for _ in shard.read(lambda _: True)) == 16
        assert sum(read) <= 2 * rows.nbytes


def test_shard_errors_name_the_sample() -> None:
    data = [{"x": ROWS[:50]}, {"x": np.full((50, 4), np.nan, np.float32)}]
    last = list(Dataset(data, (X,)).iterate_shards())[-1]
    with pytest.raises(DataError, match=r"^sample 1: input 'x' holds NaN"):
        list(last.read(lambda _: True))


class RunCounter:
    """Counter of the runs of the float model, which interrupts it after the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = 0
        self.last = 10**9
        everything = ActivationTap.run

        def run(recorder: ActivationTap, sample: Any, *names: Any, **options: Any) -> Any:
            self.runs += 1
            if self.runs > self.last:
                raise KeyboardInterrupt
            return everything(recorder, sample, *names, **options)

        monkeypatch.setattr(ActivationTap, "run", run)


def test_cache_resumes_an_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with parallel_tasks.num_threads(1):  # Counted is not made for several
        expected = quantize_to_bytes()
        count = RunCounter(monkeypatch)
        folder = tmp_path / "new" / "cache"
        count.last = 60
        with pytest.raises(KeyboardInterrupt):
            quantize_to_bytes(cache=folder)
        kept = sorted(folder.iterdir())
        assert 2 < len(kept) < 7
        count.last, count.runs = 10**9, 0
        assert quantize_to_bytes(cache=folder) == expected
        second = count.runs
        count.runs = 0
        assert quantize_to_bytes(cache=folder) == expected
        assert len(list(folder.iterdir())) == 7
        assert second - count.runs == 75 - 12 * len(kept)


def test_cache_distinguishes_models_and_data(tmp_path: Path) -> None:
    quantize_to_bytes(cache=tmp_path)
    quantize_to_bytes(cache=tmp_path, weights="int4")
    assert len(list(tmp_path.iterdir())) == 7
    quantize_to_bytes("recurrent", cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 14
    quantize_to_bytes(rows=90, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 15


def findings(samples: int = 5) -> CalibrationStats:
    result = CalibrationStats.make_empty(["a", "b", "c"], [-1, None, None])
    for number in range(samples):
        array = random(6, 4, seed=number)
        result.add(number, {"a": array, "b": array[:0], "c": array.ravel() * 100})
    return result


def same(a: CalibrationStats | None, b: CalibrationStats) -> bool:
    return a is not None and pickle.dumps(a) == pickle.dumps(b)


def read(path: Path, samples: int = 5) -> CalibrationStats | None:
    return CalibrationStats.read(path, ["a", "b", "c"], [-1, None, None], [4, None, None], samples)


def test_cache_files_hold_all_statistics(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    for samples in (5, 1):
        findings(samples).save(path)
        again = read(path, samples)
        assert again is not None
        assert again.farthest == findings(samples).farthest
        assert again.size == findings(samples).size
        for mine, theirs in zip(again.statistics, findings(samples).statistics, strict=True):
            assert (mine.lowest, mine.highest) == (theirs.lowest, theirs.highest)
            np.testing.assert_array_equal(mine.counts, theirs.counts)
            assert (mine.channels is None) == (theirs.channels is None)
            if mine.channels is not None:
                np.testing.assert_array_equal(mine.channels, theirs.channels)
    assert [file.name for file in tmp_path.iterdir()] == ["f.npz"]


def test_cache_files_have_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    findings().save(tmp_path / "f.npz")
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1


def edited(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with np.load(path) as stored:
            arrays = dict(stored)
        write_members(path, arrays | {name: change(arrays[name])})

    return edit


def first_is(value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array.flat[0] = value
        return array

    return change


def compressed(path: Path) -> None:
    np.savez_compressed(path, **(dict(np.load(path)) | {"bins": np.zeros(10**7, np.uint16)}))


def pickled(path: Path) -> None:
    np.savez(path, **(dict(np.load(path)) | {"bins": np.array([{}], dtype=object)}))


def narrower(path: Path) -> None:
    edited("widths", first_is(3))(path)
    edited("channels", lambda array: array[:6])(path)


def replaced(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(path.read_bytes()[:200] + b"\xff" * 2000),
        lambda path: path.write_bytes(path.read_bytes().replace(b"'<i8'", b"'|O8'")),
        replaced,
        compressed,
        pickled,
        narrower,
        edited("bins", lambda array: array + np.uint16(40000)),
        edited("bins", lambda array: array[1:]),
        edited("bins", lambda array: array.astype(np.int64)),
        edited("counts", lambda array: -array),
        edited("counts", first_is(2**62)),
        edited("used", first_is(2**62)),
        edited("used", first_is(-1)),
        edited("widths", first_is(2**62)),
        edited("widths", first_is(-1)),
        edited("widths", lambda array: array[::-1]),
        edited("channels", first_is(np.nan)),
        edited("ranges", first_is(np.inf)),
        edited("ranges", lambda array: array[:, ::-1]),
        edited("ranges", lambda array: array.ravel()),
        edited("reaches", first_is(np.nan)),
        edited("numbers", first_is(5)),
        edited("numbers", first_is(-1)),
        edited("size", first_is(0)),
        edited("size", lambda array: array[:0]),
        edited("other", lambda array: array),
    ],
)
def test_cache_skips_damaged_and_foreign_files(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "f.npz"
    findings().save(path)
    assert read(path) is not None
    try:
        damage(path)
    except KeyError:  # an array that ours do not have
        write_members(path, dict(np.load(path)) | {"other": np.zeros(1)})
    assert read(path) is None
    if path.is_file():
        findings().save(path)
        assert read(path) is not None


def test_cache_skips_files_of_other_shards(tmp_path: Path) -> None:
    # Their content is valid, for other samples.
    findings().save(tmp_path / "f.npz")
    (tmp_path / "f.npz").rename(tmp_path / "g.npz")
    assert read(tmp_path / "g.npz") is None
