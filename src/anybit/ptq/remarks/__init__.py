# SPDX-License-Identifier: Apache-2.0
"""Remarks on a quantized model."""
