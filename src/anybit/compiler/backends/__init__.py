# SPDX-License-Identifier: Apache-2.0
"""Forms in which programs are deployed. Another form is another module here."""

from typing import Protocol, TypeVar

from anybit.compiler.program.network import Network

Artifact_co = TypeVar("Artifact_co", covariant=True)


class Backend(Protocol[Artifact_co]):
    """Turns a program into something that runs without this compiler."""

    def emit(self, network: Network) -> Artifact_co:
        """Emit a program, which `network` has verified."""
