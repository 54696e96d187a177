# SPDX-License-Identifier: Apache-2.0
"""Types that describe quantized values and the layers that compute with them."""
