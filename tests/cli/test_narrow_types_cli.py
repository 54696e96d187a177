# SPDX-License-Identifier: Apache-2.0
"""`anybit run` on inputs and outputs of types that NumPy lacks."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from narrow_models import all_values, every_type, needs_int4, to_codes, to_float
from shell import Shell

STORED = {"INT": np.int8, "UINT": np.uint8, "FLOAT": np.float32}


@every_type
@pytest.mark.parametrize("engine", ["onnxruntime", "compiled"])
def test_run_writes_outputs_in_numpy_dtypes(shell: Shell, name: str, engine: str) -> None:
    onnx.save(to_codes(name), "m.onnx")
    values = all_values(name).astype(np.float32)
    np.savez("x.npz", x=values * np.float32(0.5))
    arguments = ["m.onnx", "--input", "x.npz", "--output", "o.npz", "--engine", engine]
    code, out, err = shell("run", *arguments)
    assert (code, err) == (0, "")
    dtype = STORED[name.rstrip("0123456789EMFNUZ") if "FLOAT" not in name else "FLOAT"]
    assert f"written to o.npz; y ({all_values(name).dtype}) as {np.dtype(dtype)}" in out
    stored = np.load("o.npz")["y"]
    assert stored.dtype == dtype
    np.testing.assert_array_equal(stored, values)
    assert shell("run", *arguments[:3], "--expect", "o.npz")[0] == 0


@every_type
def test_run_reads_its_own_outputs(shell: Shell, name: str) -> None:
    onnx.save(to_float(name), "m.onnx")
    values = all_values(name).astype(np.float32)
    np.savez("x.npz", x=values)
    np.savez("y.npz", y=values * np.float32(0.5))
    code, _, err = shell("run", "m.onnx", "--input", "x.npz", "--expect", "y.npz")
    assert (code, err) == (0, "")
    assert shell("run", "m.onnx")[0] == 0, "random inputs have the type, too"


@needs_int4
def test_run_rejects_values_out_of_range(shell: Shell) -> None:
    onnx.save(to_float("INT4"), "m.onnx")
    np.save("x.npy", np.int8([[0, 8, 1]]))
    message = shell.fails("run", "m.onnx", "--input", "x.npy", "--output", "o.npz")
    assert "input 'x' must be int4, got int8 values that int4 cannot hold" in message
    assert not Path("o.npz").exists()
