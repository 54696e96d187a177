# SPDX-License-Identifier: Apache-2.0
"""Mixed precision within a budget."""
