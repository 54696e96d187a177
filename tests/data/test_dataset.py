# SPDX-License-Identifier: Apache-2.0
"""Datasets: sources, splits, row independence and errors."""

import io
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import parallel_tasks
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit import DataError, ModelError
from anybit.data import row_independence as independence
from anybit.data.array_files import open_arrays
from anybit.data.dataset import Dataset
from anybit.data.shards import Shard
from anybit.data.splits import is_held_out, is_selected
from anybit.inputs import TensorInfo
from anybit.onnx.files.reader import read_copy
from anybit.ptq.calibration import activation_cache as keeping
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import collect_activations, find_targets
from anybit.ptq.remarks.constant_inputs import describe_constant_inputs

X = TensorInfo("x", np.dtype(np.float32), ("rows", 4))
FIXED = TensorInfo("x", np.dtype(np.float32), (2, 4))
MASK = TensorInfo("mask", np.dtype(np.int64), ("rows", None))
ROWS = random(10, 4)


def items() -> Iterator[dict[str, Any]]:
    yield from ({"x": ROWS[start : start + 5]} for start in (0, 5))


def test_dataset_accepts_files_arrays_and_iterables(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, other=np.zeros(3))
    np.savez_compressed(tmp_path / "b.npz", x=ROWS)
    np.save(tmp_path / "c.npy", np.asfortranarray(ROWS))
    folder = tmp_path / "folder"
    folder.mkdir()
    for index, item in enumerate(items()):
        np.savez(folder / f"{index}.npz", **item)
    (folder / "notes.txt").write_text("not data")
    forms: list[Any] = [ROWS, {"x": ROWS}, list(items()), items(), folder, ROWS.tolist()]
    forms += [
        {"x": list(ROWS)},
        iter(ROWS.reshape(2, 5, 4).tolist()),
        iter(sorted(folder.glob("*.npz"))),
    ]
    forms += [tmp_path / "a.npz", str(tmp_path / "b.npz"), tmp_path / "c.npy"]
    for form in forms:
        samples = Dataset(form, (X,))
        assert len(samples) == 10
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate([sample["x"] for sample in samples]), ROWS)


def test_is_held_out_selects_one_of_four() -> None:
    held = [index for index in range(400) if is_held_out(index)]
    assert [index // 4 for index in held] == list(range(100))
    assert held[0] == 1
    assert not is_held_out(0)


@pytest.mark.parametrize("period", [2, 3, 4, 8])
def test_is_held_out_is_even_over_periodic_data(period: int) -> None:
    held = [index % period for index in range(800) if is_held_out(index)]
    assert min(np.bincount(held, minlength=period)) > 200 / period / 2


@pytest.mark.parametrize("step", [1, 2, 4, 5])
def test_is_selected_selects_one_per_period(step: int) -> None:
    taken = [index for index in range(40 * step) if is_selected(index, step)]
    assert [index // step for index in taken] == list(range(40))
    assert len({index % step for index in taken}) == step


def test_dataset_splits_by_fixed_rows() -> None:
    samples = Dataset(ROWS, (FIXED,))
    assert [sample["x"].shape for sample in samples] == [(2, 4)] * 5
    with pytest.raises(DataError, match="must have shape"):
        Dataset(ROWS[:3], (FIXED,))


def test_dataset_keeps_inputs_of_different_rows_together() -> None:
    both = {"x": ROWS, "mask": np.ones((10, 7), np.int64)}
    assert len(Dataset(both, (X, MASK))) == 10
    number = TensorInfo("n", np.dtype(np.float32), ())
    assert len(Dataset({"x": ROWS, "n": np.float32(2)}, (X, number))) == 10
    free = TensorInfo("z", np.dtype(np.float32), ("others", 4))
    assert len(Dataset({"x": ROWS, "z": ROWS[:3]}, (X, free))) == 1


def test_dataset_keeps_dependent_rows_together() -> None:
    samples = Dataset(list(items()), (X,))
    samples.verify_row_independence(lambda first, second, both: len(both["x"]) != 2)
    assert [sample["x"].shape for sample in samples] == [(5, 4)] * 2


def test_find_differing_pair_limits_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Samples of different shapes are searched for two of one shape.
    monkeypatch.setattr(independence, "_MAX_KEPT_BYTES", 2**20)
    for at in range(40):
        np.save(tmp_path / f"{at:02}.npy", random(1, 2**16 + 4 * (at % 39), seed=at))
    samples = Dataset(tmp_path, (TensorInfo("x", np.dtype(np.float32), ("rows", "words")),))
    tried = []
    tracemalloc.start()
    samples.verify_row_independence(lambda *triple: tried.append(triple))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tried) == 1
    assert peak < 2**22


def test_verify_row_independence_tries_differing_rows() -> None:
    tried = []

    def together(first: Any, second: Any, both: Any) -> bool:
        tried.append((first, second, both))
        return False

    blank = ROWS.copy()
    blank[:3] = 0
    inputs = (X, MASK)
    for data in (
        {"x": blank, "mask": np.ones((10, 3), np.int64)},
        [{"x": ROWS[:4], "mask": np.ones((4, n), np.int64)} for n in (3, 5)],
        [{"x": ROWS[n : n + 1], "mask": np.ones((1, 3 + n % 2), np.int64)} for n in range(3)],
    ):
        tried.clear()
        samples = Dataset(data, inputs)
        samples.verify_row_independence(together)
        assert not samples.rows_are_samples
        ((first, second, both),) = tried
        assert not np.array_equal(first["x"], second["x"])
        for name in ("x", "mask"):
            np.testing.assert_array_equal(both[name], [*first[name], *second[name]])


def test_verify_row_independence_keeps_equal_rows_together() -> None:
    samples = Dataset(np.ones((10, 4), np.float32), (X,))
    samples.verify_row_independence(lambda *_: True)
    assert [sample["x"].shape for sample in samples] == [(10, 4)]


@pytest.mark.parametrize("form", ["array", "dicts", "files"])
def test_verify_row_independence_searches_all_of_the_data(tmp_path: Path, form: str) -> None:
    # Recordings may begin with silence.
    x = np.concatenate([np.ones((400, 4), np.float32), random(400, 4)])
    for at in (0, 400):
        np.savez(tmp_path / f"{at}.npz", x=x[at : at + 400])
    data = {"array": x, "dicts": [{"x": x[:300]}, {"x": x[300:]}], "files": tmp_path}[form]
    samples = Dataset(data, (X,))
    tried: list[bool] = []
    samples.verify_row_independence(lambda a, b, _: tried.append((a["x"] != b["x"]).any()) or True)
    assert tried == [True]
    assert len(samples) == 800
    assert not samples.remarks


def test_dataset_keeps_rows_named_by_another_axis_together() -> None:
    state = TensorInfo("h", np.dtype(np.float32), (1, "rows", 4))
    samples = Dataset({"x": ROWS, "h": random(1, 10, 4)}, (X, state))
    assert [sample["h"].shape for sample in samples] == [(1, 10, 4)]


@pytest.mark.parametrize(("rows", "samples"), [(1, 10), (5, 2)])
def test_dataset_handles_a_row_count_fixed_by_a_constant(rows: int, samples: int) -> None:
    graph = [node("Reshape", "x s", "r", domain=""), node("MatMul", "r w", domain="")]
    constants = {"s": np.array([rows, 4]), "w": random(4, 3)}
    network = model(graph, constants, inputs={"x": ("n", 4)})
    result = anybit.quantize(network, list(ROWS.reshape(-1, rows, 4)))
    assert result.verdict is not None
    assert result.verdict.samples == len(range(1, samples, 4))


@pytest.mark.parametrize("operator", ["Shape", "Size", "ReduceSum"])
def test_verify_row_independence_ignores_outputs_without_rows(operator: str) -> None:
    graph = [node("MatMul", "x w", domain=""), node(operator, "x", "beside", domain="")]
    network = model(graph, {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    kind = onnx.TensorProto.FLOAT if operator == "ReduceSum" else onnx.TensorProto.INT64
    network.graph.output.append(onnx.helper.make_tensor_value_info("beside", kind, None))
    result = anybit.quantize(network, random(40, 4))
    assert result.verdict is not None
    assert (result.verdict.samples, result.verdict.seen) == (10, False)
    assert result.remarks == ()


def of_data(network: onnx.ModelProto, data: Any) -> list[str]:
    """Return the remarks on data, without those that follow from few samples."""
    remarks = anybit.quantize(network, data).remarks
    return [text for text in remarks if not re.search("were dropped|too few samples", text)]


def test_dataset_remarks_on_a_single_sample() -> None:
    mean = [
        node("ReduceMean", "x", "mean", domain="", axes=[0]),
        node("Sub", "x mean", "centred", domain=""),
        node("MatMul", "centred w", domain=""),
    ]
    product = [node("MatMul", "x w", domain="")]
    blank = np.ones((10, 4), np.float32)
    for graph, data, reason in (
        (mean, ROWS, "the results of a row depend on the other rows"),
        (product, blank, "all compared rows are equal"),
    ):
        network = model(graph, {"w": random(4, 3)}, inputs={"x": ("n", 4)})
        (remark,) = of_data(network, data)
        assert reason in remark
        assert "give a folder with a file per sample, or a list" in remark
        assert not of_data(network, data[:1])
        assert not of_data(network, [data[:5], ROWS[5:]])
    free = TensorInfo("z", np.dtype(np.float32), ("others", 4))
    samples = Dataset({"x": ROWS, "z": ROWS[:3]}, (X, free))
    samples.verify_row_independence(lambda *_: True)
    assert "not all inputs have the same rows" in samples.remarks[0]
    state = TensorInfo("h", np.dtype(np.float32), (1, "rows", 4))
    samples = Dataset({"x": ROWS, "h": random(1, 10, 4)}, (X, state))
    assert "not all inputs have the same rows" in samples.remarks[0]


@pytest.mark.parametrize(
    ("x", "h", "named"),
    [
        (ROWS, ROWS, None),
        (ROWS[:1], ROWS, "Input x is the same in all 10 samples"),
        (ROWS[:1], ROWS[:1], "Inputs x, h are the same in all 10 samples"),
        (ROWS.repeat(30, 0), ROWS[:1], "Input h is the same in the first 256 samples"),
        (ROWS, np.int64([[3]]), None),
        (ROWS[:1], np.int64([[3]]), "Inputs x, h are"),
        (ROWS[:1], np.arange(10)[:, None], "Input x is"),
    ],
)
def test_quantize_remarks_on_constant_inputs(x: Any, h: Any, named: str | None) -> None:
    count = max(len(x), len(h), 10)
    items = [{"x": x[at % len(x)][None], "h": h[at % len(h)][None]} for at in range(count)]
    samples = Dataset(items, (X, TensorInfo("h", h.dtype, ("rows", None))))
    remarks = describe_constant_inputs(samples)
    assert remarks == () if named is None else named in remarks[0]
    assert (
        describe_constant_inputs(Dataset(items[:1], (X, TensorInfo("h", h.dtype, ("rows", None)))))
        == ()
    )


def test_quantize_remarks_on_equal_samples() -> None:
    product = node("MatMul", "x w", domain="")
    network = model([product], {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    (remark,) = of_data(network, [ROWS[:1]] * 8)
    assert "Input x is the same in all 8 samples" in remark


def test_verify_row_independence_is_false_for_infinities() -> None:
    # A mean over rows shows, although a mask adds infinity to one column.
    graph = [
        node("ReduceMean", "x", "mean", domain="", axes=[0]),
        node("Sub", "x mean", "centred", domain=""),
        node("MatMul", "centred w", "product", domain=""),
        node("Add", "product mask", domain=""),
    ]
    constants = {"w": random(4, 3), "mask": np.array([0, 0, -np.inf], np.float32)}
    network = model(graph, constants, inputs={"x": ("n", 4)})
    result = anybit.quantize(network, [ROWS[:5], ROWS[5:]])
    assert result.verdict is not None
    assert result.verdict.samples == 1


class Shuffled:
    """Iterable that shuffles its items each time, as data loaders do."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._random.permutation(ROWS)[:, None])


def test_shard_reads_held_out_and_calibration_samples_once() -> None:
    samples = Dataset(Shuffled(), (X,))
    (shard,) = samples.iterate_shards()
    seen = [
        *(sample for _, sample in shard.read(lambda number: not is_held_out(number))),
        *(sample for _, sample in shard.read(is_held_out)),
    ]
    assert len({sample["x"].tobytes() for sample in seen}) == len(seen) == 10


def test_quantize_stops_reading_after_the_last_kept_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first pass reads all calibration samples, the second few that are spread over them.
    passes: list[list[int]] = []
    everything = Shard.read

    def read(self: Shard, predicate: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        if self.first == 0:
            passes.append([])
        for index, sample in everything(self, predicate):
            passes[-1].append(index)
            yield index, sample

    monkeypatch.setattr(Shard, "read", read)
    network = model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    rows = random(400, 4)
    rows[0] *= 100
    with parallel_tasks.num_threads(1):
        anybit.quantize(network, rows)
    first, second, *_ = passes
    assert len(first) == 300
    assert 8 * 18 <= len(second) <= 8 * 18 + 2


def test_dataset_stores_inputs_of_any_name() -> None:
    tensor = TensorInfo("file", np.dtype(np.float32), ("rows", 4))
    assert len(Dataset(({"file": row[None]} for row in ROWS), (tensor,))) == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there are no samples"),
        (np.full((3, 4), np.nan, np.float32), "sample 0: input 'x' holds NaN or infinity"),
        (np.ones((3, 5), np.float32), r"sample 0: .*must have shape"),
        ({"y": ROWS, "z": ROWS}, "it holds y, z; the model takes x"),
        (np.zeros((0, 4), np.float32), "hold no samples"),
        (iter([(ROWS, 0)]), "^sample 0: a tuple of 2; give arrays, .* without labels"),
        ([[ROWS, ROWS]], "^sample 0: a list of 2; give arrays, .* without labels"),
        (iter([ROWS, np.array([{}])]), "^sample 1: not numbers but ndarray of objects"),
        ([[1.0, 2], [3]], "^sample 0: not an array: "),
        (np.ones((3, 4), "S9"), r"^sample 0: input 'x' must be float32, got \|S9"),
    ],
)
def test_dataset_rejects_data_that_do_not_fit(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset(data, (X,))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("compressed", [False, True])
def test_dataset_locates_nan(tmp_path: Path, threads: int, compressed: bool) -> None:
    # Also in iterables, which are written to files.
    rows = random(60, 4)
    np.save(tmp_path / "a.npy", rows)
    rows[37, 3] = np.nan
    (np.savez_compressed if compressed else np.savez)(tmp_path / "b.npz", x=rows)
    proto = model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    message = r"b.npz: input 'x' holds NaN or infinity at \[37, 3\]"
    with parallel_tasks.num_threads(threads), pytest.raises(DataError, match=message):
        anybit.quantize(proto, tmp_path)


def dicts(rows: np.ndarray, _: Path) -> list[dict[str, np.ndarray]]:
    return [{"x": item} for item in rows.reshape(6, 10, 4)]


def saved(rows: np.ndarray, folder: Path) -> Path:
    np.savez(folder / "a.npz", x=rows[:30])
    np.savez_compressed(folder / "b.npz", x=rows[30:])
    return folder


@pytest.mark.parametrize(
    ("data", "remark"),
    [
        (lambda rows, _: rows, "^sample 0, row 37: "),
        (dicts, "^sample 3, row 7: "),
        (lambda *arguments: iter(dicts(*arguments)), "^sample 3, row 7: "),
        (saved, "b.npz, row 7: "),
    ],
)
def test_quantize_locates_samples_with_nan_activations(
    data: Any, remark: str, tmp_path: Path
) -> None:
    # Items and rows are numbered as in errors on inputs with NaN.
    rows = random(60, 4)
    rows[37, 3] = 3e38
    nodes = [
        node("Add", "x x", "twice", domain="", name="twice"),
        node("MatMul", "twice w", domain="", name="product"),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ("n", 4)})
    with pytest.raises(ModelError, match=f"{remark}'twice' holds NaN or infinity"):
        anybit.quantize(proto, data(rows, tmp_path))


def test_shard_describes_rows_of_a_sample() -> None:
    (shard,) = Dataset(ROWS, (FIXED,)).iterate_shards()
    assert shard.describe_sample(3) == "sample 0, rows 6 to 7 of 'x': "


def test_shard_describes_items() -> None:
    (shard,) = Dataset(
        [ROWS, ROWS], (TensorInfo("x", np.dtype(np.float32), (10, 4)),)
    ).iterate_shards()
    assert shard.describe_sample(1) == "sample 1, rows 0 to 9 of 'x': "
    number = TensorInfo("x", np.dtype(np.float32), ())
    (shard,) = Dataset([np.array(1.0), np.array(2.0)], (number,)).iterate_shards()
    assert shard.describe_sample(1) == "sample 1: "


def test_dataset_rejects_floats_beyond_the_input_dtype() -> None:
    rows = ROWS.astype(np.float64)
    rows[7, 2] = 1e39
    with pytest.raises(DataError, match=r"input 'x' holds 1e\+39 at \[7, 2\], beyond float32"):
        list(Dataset(rows, (X,)))


def test_dataset_rejects_samples_without_elements() -> None:
    dynamic = TensorInfo("x", np.dtype(np.float32), ("n", "t"))
    with pytest.raises(DataError, match=r"\(1, 0\): it has no elements, so that nothing can be"):
        list(Dataset([np.zeros((2, 0), np.float32)], (dynamic,)))
    with pytest.raises(DataError, match="no samples"):
        list(Dataset([np.zeros((0, 4), np.float32)], (dynamic,)))


def test_dataset_rejects_files_that_do_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "rows.npz", x=ROWS)
    cut = (tmp_path / "rows.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(cut[: len(cut) // 2])
    np.save(tmp_path / "long.npy", ROWS)
    content = bytearray((tmp_path / "long.npy").read_bytes())
    at = content.index(b"(10, 4)")
    content[at : at + 7] = b"(99, 4)"
    (tmp_path / "long.npy").write_bytes(bytes(content))
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, message in (
        ("objects.npz", "pickle"),
        ("cut.npz", "is not an .npy or .npz file"),
        ("long.npy", "cut off"),
        ("none.npz", "No such file|no such file"),
        ("empty", "holds no .npy and no .npz"),
    ):
        with pytest.raises((DataError, OSError), match=message):
            Dataset(tmp_path / name, (X,))


def test_open_arrays_is_lazy(tmp_path: Path) -> None:
    stored = io.BytesIO()
    np.save(stored, ROWS)
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for name in [*map(str, range(100)), "x"]:
            archive.writestr(f"{name}.npy", stored.getvalue() if name == "x" else b"broken")
    assert len(Dataset(tmp_path / "many.npz", (X,))) == 10


def test_stored_array_compares_sizes_before_reading(tmp_path: Path) -> None:
    wide = 10_000_000
    np.savez_compressed(tmp_path / "wide.npz", x=np.zeros((1, wide), np.float32))
    np.savez_compressed(tmp_path / "text.npz", x=np.zeros((1, 4), f"S{wide}"))
    with zipfile.ZipFile(tmp_path / "header.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"\x93NUMPY\x02\x00" + (4 * wide).to_bytes(4, "little")
        archive.writestr("x.npy", header + b" " * (4 * wide))
    for name, message in (("wide", "must have shape"), ("text", "must be"), ("header", "header")):
        tracemalloc.start()
        with pytest.raises(DataError, match=message):
            Dataset(tmp_path / f"{name}.npz", (X,))
        assert tracemalloc.get_traced_memory()[1] < wide
        tracemalloc.stop()


def test_stored_array_reads_fortran_order_once(tmp_path: Path) -> None:
    np.save(tmp_path / "columns.npy", np.asfortranarray(ROWS))
    array = open_arrays(tmp_path / "columns.npy")[""]
    np.testing.assert_array_equal(array[2:3], ROWS[2:3])
    (tmp_path / "columns.npy").write_bytes(b"")
    np.testing.assert_array_equal(array[3:5], ROWS[3:5])


@pytest.mark.parametrize(("answer", "runs"), [(True, 2), (None, 4), (False, 1)])
def test_concatenate_joins_independent_rows(answer: bool | None, runs: int) -> None:
    # Only samples of one shape are joined: three have three columns, and one has two.
    data = [random(3, 3), random(1, 2)] if answer is not False else [random(4, 3)]
    inputs = (TensorInfo("x", np.dtype(np.float32), ("rows", None)),)
    samples = Dataset(data, inputs)
    samples.verify_row_independence(lambda *_: answer)
    result = samples.concatenate(list(samples))
    assert len(result) == runs
    rows = [row for item in data for row in item]
    np.testing.assert_array_equal(
        np.concatenate([sample["x"].ravel() for sample in result]), np.concatenate(rows)
    )


def test_activation_cache_limits_memory_of_large_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # They are read again for each run.
    config = replace(DEFAULT.calibration, memory_bytes=2**17)
    passes: list[int] = []
    everything = Shard.read

    def read(self: Shard, predicate: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        passes.append(0)
        for number, sample in everything(self, predicate):
            passes[-1] += 1
            yield number, sample

    network = model(
        [node("MatMul", "x w", domain="")], {"w": random(16, 3)}, inputs={"x": ("n", "words", 16)}
    )
    rows = [random(1, 500 if at else 2, 16, seed=at) for at in range(15)]
    samples = Dataset(rows, (TensorInfo("x", np.dtype(np.float32), (None, None, 16)),))
    monkeypatch.setattr(Shard, "read", read)
    proto = read_copy(network)
    sources = collect_activations(find_targets(proto).layers)
    parts = tuple(range(8)), tuple(range(8, 15))
    keeping.cache_activations(proto, sources, samples, parts, [()], 32000, "", config)
    assert max(passes) == 2


def dense() -> onnx.ModelProto:
    return model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs={"x": ["n", 4]})


def test_dataset_errors_show_the_shape_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((100, 5), np.float32))
    with pytest.raises(DataError, match=r"data\.npz: input 'x' must have shape .*got \[100, 5\]"):
        anybit.quantize(dense(), tmp_path / "data.npz")


def test_dataset_rejects_arrays_of_other_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", image=np.ones((100, 4), np.float32))
    with pytest.raises(DataError, match=r"data\.npz: it holds image; the model takes x"):
        anybit.quantize(dense(), tmp_path / "data.npz")
