# SPDX-License-Identifier: Apache-2.0
"""Text and HTML reports of a comparison."""
