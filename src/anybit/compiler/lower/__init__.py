# SPDX-License-Identifier: Apache-2.0
"""Lowering of expressions to instructions."""
