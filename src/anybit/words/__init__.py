# SPDX-License-Identifier: Apache-2.0
"""Format specs, one grammar for every command and framework: `int4 per-channel narrow`."""
