# SPDX-License-Identifier: Apache-2.0
"""Minifloat formats and rounding modes for sweeps."""

MINIFLOATS = [(e, m) for e in range(1, 8) for m in range(8 - e)]

# Ours, and gfloat's names for the same.
GFLOAT_MODES = {
    "ROUND": "TiesToEven",
    "HALF_UP": "TiesToAway",
    "DOWN": "TowardZero",
    "CEIL": "TowardPositive",
    "FLOOR": "TowardNegative",
}
