# SPDX-License-Identifier: Apache-2.0
"""The function names and signatures of other packages over our operators, one module for each."""
