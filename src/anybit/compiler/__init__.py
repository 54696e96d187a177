# SPDX-License-Identifier: Apache-2.0
"""Networks of integers: programs of few bits that compute exactly what a float graph does."""
