# SPDX-License-Identifier: Apache-2.0
"""Why something stays float."""


class Unsupported(Exception):
    """What a region cannot do; the message says why."""
