# SPDX-License-Identifier: Apache-2.0
"""What operators do to carriers: one function per kind, and in `table` one row per operator."""
