# SPDX-License-Identifier: Apache-2.0
"""Calibration: statistics and samples of activations, in two passes."""
