# SPDX-License-Identifier: Apache-2.0
"""Analysis of the float model: which tensors get quantizers."""
