# SPDX-License-Identifier: Apache-2.0
"""One pass per file. A pass changes a model in place and names no operator."""

from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.normalize import Normalize

__all__ = ["FoldConstants", "Normalize"]
