# SPDX-License-Identifier: Apache-2.0
"""Partition of graphs into integer regions and float nodes."""
