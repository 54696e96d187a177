# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison, and the runners that compute their tensors."""
