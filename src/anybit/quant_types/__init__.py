# SPDX-License-Identifier: Apache-2.0
"""Quantized types: the sets of values that quantizers produce."""
