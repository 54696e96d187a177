# SPDX-License-Identifier: Apache-2.0
"""What the outputs of one model are worth."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.text import sizes

Function: TypeAlias = Callable[[dict[str, Array], Array | None], npt.ArrayLike]
"""From the outputs for a sample, by name, and its labels, to a number or one for each row."""

BETWEEN = ("sqnr", "agreement", "mse")
"""What compares a model with the first one, and needs no labels."""

_BUILT_IN = "top1, top5, mse, sqnr, agreement, or module:function"


@dataclass(frozen=True)
class Metric:
    """A name, and the function behind it."""

    name: str
    function: Function

    def __call__(self, outputs: Mapping[str, Array], labels: Array | None) -> Array:
        """Its values for a sample.

        Raises:
            ModelError: The function fails, or gives something else than numbers.
        """
        try:
            found = np.asarray(self.function(dict(outputs), labels), np.float64).ravel()
        except ModelError:
            raise
        except Exception as error:  # it is not ours
            raise ModelError(
                f"metric {self.name} raised {type(error).__name__}: {error}"
            ) from error
        if not np.isfinite(found).all() or not found.size:
            raise ModelError(f"metric {self.name} must give finite numbers, got {found.tolist()}")
        return found


def metric_of(given: "str | Function | None", has_labels: bool) -> Metric | str | None:
    """The metric, or its name where it compares models, or None where none was asked for.

    Raises:
        ModelError: A name that is not known; one that needs labels, without these.
    """
    if given is None:
        return Metric("top1", _top(1)) if has_labels else None
    if not isinstance(given, str):
        return Metric(getattr(given, "__name__", "metric"), given)
    if given == "mse" and has_labels:
        return Metric("mse", _squared_errors)
    if given in BETWEEN:
        return given
    if given in ("top1", "top5"):
        if not has_labels:
            raise ModelError(f"metric {given} needs labels: name the array that holds them")
        return Metric(given, _top(int(given[3:])))
    return Metric(given, _imported(given))


def _imported(spelled: str) -> Function:
    module, colon, name = spelled.partition(":")
    if not (module and colon and name):
        raise ModelError(f"metric must be {_BUILT_IN}; got {spelled!r}")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # a module of the user's, with errors of its own
        raise ModelError(
            f"metric {spelled}: {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function = getattr(found, name, None)
    if not callable(function):
        raise ModelError(f"metric {spelled}: {module} has no function {name}")
    return function  # type: ignore[no-any-return]


def _top(most: int) -> Function:
    """For each row, whether its label is among the places of so many largest elements."""

    def right(outputs: dict[str, Array], labels: Array | None) -> Array:
        assert labels is not None, "metric_of asks for them"
        if labels.dtype.kind not in "iu":
            raise ModelError(f"labels must be numbers of classes, got {labels.dtype}")
        scores = _scores(outputs)
        classes = labels.reshape(-1)
        if len(classes) != len(scores):
            raise ModelError(f"there are {len(classes)} labels for {len(scores)} rows of an output")
        if scores.ndim == 1:
            return np.equal(scores, classes)
        if classes.min(initial=0) < 0 or classes.max(initial=0) >= scores.shape[1]:
            raise ModelError(
                f"labels reach from {classes.min()} to {classes.max()}, and the model has "
                f"{scores.shape[1]} classes"
            )
        # Of equal scores the first counts more, as for argmax.
        order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :most]
        found: Array = (order == classes[:, None]).any(axis=1)
        return found

    return right


def _scores(outputs: Mapping[str, Array]) -> Array:
    """The first output with rows of classes, or else the first with a class for each row."""
    for array in outputs.values():
        if array.ndim == 2 and array.shape[1] > 1:
            return array
    for array in outputs.values():
        if array.dtype.kind in "iu" and array.size == max(array.shape, default=1):
            return array.reshape(-1)
    shapes = ", ".join(f"{name} {sizes(array.shape)}" for name, array in outputs.items())
    raise ModelError(f"no output has rows of classes, [rows, classes]; there are {shapes}")


def _squared_errors(outputs: dict[str, Array], labels: Array | None) -> Array:
    """Of the first output, which labels are to be like."""
    assert labels is not None, "metric_of knows that there are some"
    name, array = next(iter(outputs.items()))
    if array.size != labels.size:
        raise ModelError(
            f"labels of shape {list(labels.shape)} are not like output {name!r}, "
            f"{list(array.shape)}"
        )
    found: Array = np.square(array.astype(np.float64).ravel() - labels.ravel())
    return found
