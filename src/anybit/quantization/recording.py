# SPDX-License-Identifier: Apache-2.0
"""What the float model computes on the way, for the data of a user."""

from collections.abc import Sequence

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.runtime import make_session, reason, run_session
from anybit.quantization.samples import Sample


class Recorder:
    """A session of a model with some of its tensors for outputs.

    Raises:
        ModelError: The model cannot be loaded.
    """

    def __init__(self, model: ir.Model, values: Sequence[ir.Value], where: str) -> None:
        self._where = where
        self._names = [str(value.name) for value in values]
        copy = model.clone()
        made = {str(value.name): value for node in copy.graph for value in node.outputs}
        wanted = [made[name] for name in dict.fromkeys(self._names) if name in made]
        copy.graph.outputs[:] = wanted or list(copy.graph.outputs)
        try:
            self._session = make_session(copy)
        except ModelError:
            raise
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{where} cannot be loaded: {reason(error)}") from error

    def run(self, sample: Sample) -> dict[str, Array]:
        """The tensors for one sample, by name. Constants and texts are not among them.

        Raises:
            ModelError: What the runtime reports.
        """
        try:
            found = run_session(self._session, sample)
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{self._where} cannot be run: {reason(error)}") from error
        known = sample | found
        return {name: known[name] for name in self._names if name in known}
