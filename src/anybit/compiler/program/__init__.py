# SPDX-License-Identifier: Apache-2.0
"""Programs of integer regions: records, encoding, reference, kernels."""
