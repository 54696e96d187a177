# SPDX-License-Identifier: Apache-2.0
"""The operators in PyTorch's dispatcher, per device; names no operator."""
