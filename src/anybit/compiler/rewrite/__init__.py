# SPDX-License-Identifier: Apache-2.0
"""Rewriting of graphs: nodes for regions, integer weights."""
