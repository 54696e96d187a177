# SPDX-License-Identifier: Apache-2.0
"""Why something stays float."""


class Uncovered(Exception):
    """What a region cannot do; the message says why."""
