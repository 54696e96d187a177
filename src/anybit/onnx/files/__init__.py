# SPDX-License-Identifier: Apache-2.0
"""Model files: reading with checks, atomic writing, messages for runtimes."""
