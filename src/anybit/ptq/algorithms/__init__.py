# SPDX-License-Identifier: Apache-2.0
"""Algorithms that choose quantization parameters, one per file."""
