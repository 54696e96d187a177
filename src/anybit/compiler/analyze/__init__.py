# SPDX-License-Identifier: Apache-2.0
"""Analysis of values, grids and sizes."""
