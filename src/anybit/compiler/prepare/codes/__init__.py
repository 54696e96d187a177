# SPDX-License-Identifier: Apache-2.0
"""Operators on codes, rewritten as float nodes between quantizers."""
