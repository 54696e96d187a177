# SPDX-License-Identifier: Apache-2.0
"""Arrays in files: .npy and .npz, read without trust and written whole or not at all."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.cli._files import replacing
from anybit.errors import ModelError

Array: TypeAlias = npt.NDArray[Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz by name, or the one array of an .npy under the name "".

    Pickled objects are refused: loading them would run code from the file.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise ModelError(f"{path}: not a file")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path} is not an .npy or .npz file of numbers: {error}") from error


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz of those names. The file appears when it is complete."""
    # np.savez takes names as keywords, which not every ONNX name can be ("file").
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
