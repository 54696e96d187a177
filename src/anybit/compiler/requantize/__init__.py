# SPDX-License-Identifier: Apache-2.0
"""Requantization: exact epilogues for float functions of accumulators."""
