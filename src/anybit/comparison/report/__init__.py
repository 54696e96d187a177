# SPDX-License-Identifier: Apache-2.0
"""What a comparison found, in words and pictures."""
