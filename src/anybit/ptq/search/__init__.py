# SPDX-License-Identifier: Apache-2.0
"""Search of quantization parameters, layer by layer and for the whole network."""
