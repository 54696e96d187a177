# SPDX-License-Identifier: Apache-2.0
"""Data in every form in which they come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from passes import random

from anybit import ModelError
from anybit.inputs import Tensor
from anybit.quantization.samples import Samples

X = Tensor("x", np.dtype(np.float32), ("rows", 4))
FIXED = Tensor("x", np.dtype(np.float32), (2, 4))
MASK = Tensor("mask", np.dtype(np.int64), ("rows", None))
ROWS = random(10, 4)


def items() -> Iterator[dict[str, Any]]:
    yield from ({"x": ROWS[start : start + 5]} for start in (0, 5))


def test_forms(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, other=np.zeros(3))
    np.savez_compressed(tmp_path / "b.npz", x=ROWS)
    np.save(tmp_path / "c.npy", np.asfortranarray(ROWS))
    folder = tmp_path / "folder"
    folder.mkdir()
    for index, item in enumerate(items()):
        np.savez(folder / f"{index}.npz", **item)
    (folder / "notes.txt").write_text("not data")
    forms: list[Any] = [ROWS, {"x": ROWS}, list(items()), items(), folder]
    forms += [tmp_path / "a.npz", str(tmp_path / "b.npz"), tmp_path / "c.npy"]
    for form in forms:
        samples = Samples(form, (X,))
        assert len(samples) == 10
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate([each["x"] for each in samples]), ROWS)


def test_every_fourth_is_held_back() -> None:
    samples = Samples(ROWS, (X,))
    assert [index for index, _ in samples.calibration()] == [0, 2, 3, 4, 6, 7, 8]
    np.testing.assert_array_equal([each["x"][0] for each in samples.held_back()], ROWS[1::4])
    single = Samples(ROWS[:1], (X,))
    assert len(list(single.calibration())) == len(list(single.held_back())) == 1


def test_rows_that_a_file_fixes() -> None:
    samples = Samples(ROWS, (FIXED,))
    assert [each["x"].shape for each in samples] == [(2, 4)] * 5
    with pytest.raises(ModelError, match="must have shape"):
        Samples(ROWS[:3], (FIXED,))


def test_inputs_of_different_rows_stay_together() -> None:
    both = {"x": ROWS, "mask": np.ones((10, 7), np.int64)}
    assert len(Samples(both, (X, MASK))) == 10
    number = Tensor("n", np.dtype(np.float32), ())
    assert len(Samples({"x": ROWS, "n": np.float32(2)}, (X, number))) == 10
    free = Tensor("z", np.dtype(np.float32), ("others", 4))
    assert len(Samples({"x": ROWS, "z": ROWS[:3]}, (X, free))) == 1


def test_rows_that_belong_together() -> None:
    samples = Samples(list(items()), (X,))
    samples.take_whole_unless(lambda first, second, both: len(both["x"]) != 2)
    assert [each["x"].shape for each in samples] == [(5, 4)] * 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there are no samples"),
        (np.full((3, 4), np.nan, np.float32), "sample 0: input 'x' holds NaN or infinity"),
        (np.ones((3, 5), np.float32), r"sample 0: .*must have shape"),
        ({"y": ROWS, "z": ROWS}, "it holds y, z; the model takes x"),
        (np.zeros((0, 4), np.float32), "hold no samples"),
    ],
)
def test_data_that_do_not_fit(data: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Samples(data, (X,))


def test_files_that_do_not_fit(tmp_path: Path) -> None:
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
        with pytest.raises((ModelError, OSError), match=message):
            Samples(tmp_path / name, (X,))
