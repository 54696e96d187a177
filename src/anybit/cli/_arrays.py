# SPDX-License-Identifier: Apache-2.0
"""Arrays for files: written whole or not at all."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.cli._files import replacing

Array: TypeAlias = npt.NDArray[Any]


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz of those names. The file appears when it is complete."""
    # np.savez takes names as keywords, which not every ONNX name can be ("file").
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
