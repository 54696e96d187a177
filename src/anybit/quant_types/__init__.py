# SPDX-License-Identifier: Apache-2.0
"""Types of quantized values, and of the layers that compute with them."""
