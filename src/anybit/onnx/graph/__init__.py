# SPDX-License-Identifier: Apache-2.0
"""Graphs: constants, edits, and what a piece of one computes."""
