# SPDX-License-Identifier: Apache-2.0
"""Operators on codes as float nodes, with the codes of ONNX Runtime's kernels."""
