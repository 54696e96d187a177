# SPDX-License-Identifier: Apache-2.0
"""Programs as C source, for microcontrollers."""
