# SPDX-License-Identifier: Apache-2.0
"""Insertion of quantizers into a model."""
