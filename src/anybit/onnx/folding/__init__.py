# SPDX-License-Identifier: Apache-2.0
"""What is constant in a graph: extents that are known, pieces that are evaluated."""
