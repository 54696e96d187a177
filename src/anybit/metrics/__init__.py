# SPDX-License-Identifier: Apache-2.0
"""Quality metrics of model outputs: SQNR, agreement, correlation."""
