# SPDX-License-Identifier: Apache-2.0
"""Quantizer specs, and the grids that they make for a range."""
