# SPDX-License-Identifier: Apache-2.0
"""Constant subgraphs: bounds of their sizes, and evaluation."""
