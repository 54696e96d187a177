# SPDX-License-Identifier: Apache-2.0
"""Files: read and checked, written wholly or not at all, handed to a runtime."""
