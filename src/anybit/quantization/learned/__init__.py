# SPDX-License-Identifier: Apache-2.0
"""Learned rounding, in PyTorch: for `quantize` with all effort. Nothing else here imports it."""
