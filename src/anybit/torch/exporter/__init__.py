# SPDX-License-Identifier: Apache-2.0
"""Export of PyTorch modules to ONNX files.

export           a file, or a model, with quantizers and standard operators only
ExportResult         the result: the model, and its comparison with the module
export_options   arguments of `torch.onnx.export` for the operators
"""

from anybit.torch.exporter.exporter import export
from anybit.torch.exporter.options import export_options
from anybit.torch.exporter.report import ExportResult

__all__ = ["ExportResult", "export", "export_options"]
