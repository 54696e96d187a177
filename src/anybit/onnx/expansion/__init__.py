# SPDX-License-Identifier: Apache-2.0
"""The bodies of our operators in standard ONNX, traced from their references."""
