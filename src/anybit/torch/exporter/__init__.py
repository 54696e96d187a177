# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch as ONNX files.

export           a file, or a model, with quantizers and standard operators only
Exported         the result: the model, and how it compares with the module
export_options   what `torch.onnx.export` needs to know of the operators
"""

from anybit.torch.exporter.exporter import export
from anybit.torch.exporter.options import export_options
from anybit.torch.exporter.report import Exported

__all__ = ["Exported", "export", "export_options"]
