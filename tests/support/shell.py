# SPDX-License-Identifier: Apache-2.0
"""The command line inside a test."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import quantized_input

from anybit import cli

X = np.array([[0.3, -0.8, 1.2, 99]], np.float32)
Y = np.array([[0.5, -1.0, 1.0, 3.5]], np.float32)


class Shell:
    """Runs commands in a folder that holds model.onnx, x.npy and both.npz (x and y)."""

    def __init__(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
    ) -> None:
        self._capfd, self._monkeypatch = capfd, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.delenv("COLUMNS", raising=False)
        onnx.save(quantized_input(), "model.onnx")
        np.save("x.npy", X)
        np.savez("both.npz", x=X, y=Y)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command; return the exit code, stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["anybit", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = self._capfd.readouterr()
        return int(stopped.value.code or 0), out, err

    def fails(self, *arguments: str, code: int = 2) -> str:
        """Run a command that fails; return the one line on stderr."""
        status, _, err = self(*arguments)
        assert status == code, err
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        return err[len("error: ") : -1]
