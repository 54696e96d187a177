# SPDX-License-Identifier: Apache-2.0
"""What sweeps over formats go through."""

MINIFLOATS = [(e, m) for e in range(1, 8) for m in range(8 - e)]

# Ours, and gfloat's names for the same.
GFLOAT_MODES = {
    "ROUND": "TiesToEven",
    "HALF_UP": "TiesToAway",
    "DOWN": "TowardZero",
    "CEIL": "TowardPositive",
    "FLOOR": "TowardNegative",
}
