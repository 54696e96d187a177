# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with models."""


class ModelError(ValueError):
    """A model, or an input for it, that cannot be used.

    The message is one line: where (file, node or tensor), what, and what to do about it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
