# SPDX-License-Identifier: Apache-2.0
"""The native module, and the C++ behind it. Names no operator."""
