# SPDX-License-Identifier: Apache-2.0
"""Transfer functions: from abstract values of inputs to the abstract value of the output."""
