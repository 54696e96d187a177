# SPDX-License-Identifier: Apache-2.0
"""Bodies of this package's operators in standard ONNX, traced from their references."""
