# SPDX-License-Identifier: Apache-2.0
"""Compiler from quantized models to programs of integers that give the same results."""
