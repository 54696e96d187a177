# SPDX-License-Identifier: Apache-2.0
"""Quantizers in words, one grammar for every command and framework: `int4 per-channel narrow`."""
