# SPDX-License-Identifier: Apache-2.0
"""The annotation of NumPy arrays."""

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
