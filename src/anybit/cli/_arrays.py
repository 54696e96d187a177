# SPDX-License-Identifier: Apache-2.0
"""Arrays for files: written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path

from anybit.array_files import Array, write_members
from anybit.cli._files import replacing
from anybit.inputs import in_numpy_dtype


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz of those names. The file appears when it is complete.

    Types that NumPy lacks are written as int8, uint8 or float32, which hold the same values.
    """
    with replacing(path) as file:
        write_members(file, {name: in_numpy_dtype(array) for name, array in arrays.items()})
