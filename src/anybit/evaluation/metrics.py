# SPDX-License-Identifier: Apache-2.0
"""Metrics: a score of the outputs of one model on one sample."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.errors import DataError, ModelError, OptionError
from anybit.onnx.graph.constants import Array
from anybit.text import format_shape

MetricFunction: TypeAlias = Callable[[dict[str, Array], Array | None], npt.ArrayLike]
"""Maps the outputs of a sample, by name, and its labels to a number, or one per row."""

COMPARISONS = ("sqnr", "agreement", "mse")
"""Metrics that compare a model with the first one, and need no labels."""

_BUILT_IN = "top1, top5, mse, sqnr, agreement, or module:function"


@dataclass(frozen=True)
class Metric:
    """A function with a name."""

    name: str
    function: MetricFunction

    def __call__(self, outputs: Mapping[str, Array], labels: Array | None) -> Array:
        """Return the values of a sample, in float64.

        Raises:
            ModelError: The function raises, or does not return finite numbers.
        """
        try:
            values = np.asarray(self.function(dict(outputs), labels), np.float64).ravel()
        except (DataError, ModelError):
            raise
        except Exception as error:  # of a user's function
            raise ModelError(
                f"metric {self.name} raised {type(error).__name__}: {error}"
            ) from error
        if not np.isfinite(values).all() or not values.size:
            raise ModelError(
                f"metric {self.name} must return finite numbers, got {values.tolist()}"
            )
        return values


def parse_metric(metric: "str | MetricFunction | None", has_labels: bool) -> Metric | str | None:
    """Return the metric; its name if it compares models; None if there is no metric.

    Raises:
        OptionError: An unknown name, or a metric that needs labels without them.
    """
    if metric is None:
        return Metric("top1", _make_top_accuracy(1)) if has_labels else None
    if not isinstance(metric, str):
        return Metric(getattr(metric, "__name__", "metric"), metric)
    if metric == "mse" and has_labels:
        return Metric("mse", _compute_squared_errors)
    if metric in COMPARISONS:
        return metric
    if metric in ("top1", "top5"):
        if not has_labels:
            raise OptionError(f"metric={metric!r} needs labels: add labels='NAME' or a file")
        return Metric(metric, _make_top_accuracy(int(metric[3:])))
    return Metric(metric, _import_function(metric))


def _import_function(metric: str) -> MetricFunction:
    module_name, colon, name = metric.partition(":")
    if not (module_name and colon and name):
        raise OptionError(f"metric must be one of {_BUILT_IN}; got {metric!r}")
    try:
        module: Any = importlib.import_module(module_name)
    except Exception as error:  # of a user's module
        raise OptionError(
            f"metric={metric!r}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"metric={metric!r}: {module_name} has no function {name}")
    return function  # type: ignore[no-any-return]


def _make_top_accuracy(limit: int) -> MetricFunction:
    """Return the metric that is 1 for rows whose label is among the top classes, else 0."""

    def is_in_top(outputs: dict[str, Array], labels: Array | None) -> Array:
        assert labels is not None, "parse_metric checks it"
        if labels.dtype.kind not in "iu":
            raise DataError(f"labels must be class indices (integers), got {labels.dtype}")
        scores = _find_scores(outputs)
        classes = labels.reshape(-1)
        if len(classes) != len(scores):
            raise DataError(f"there are {len(classes)} labels for {len(scores)} rows of an output")
        if scores.ndim == 1:
            return np.equal(scores, classes)
        if classes.min(initial=0) < 0 or classes.max(initial=0) >= scores.shape[1]:
            raise DataError(
                f"labels range from {classes.min()} to {classes.max()}, and the model has "
                f"{scores.shape[1]} classes"
            )
        # Of equal scores the first ranks higher, as for argmax.
        order = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :limit]
        return np.asarray((order == classes[:, None]).any(axis=1))

    return is_in_top


def _find_scores(outputs: Mapping[str, Array]) -> Array:
    """Return the first output of shape [rows, classes], else the first with one class per row."""
    for array in outputs.values():
        if array.ndim == 2 and array.shape[1] > 1:
            return array
    for array in outputs.values():
        if array.dtype.kind in "iu" and array.size == max(array.shape, default=1):
            return array.reshape(-1)
    shapes = ", ".join(f"{name} {format_shape(array.shape)}" for name, array in outputs.items())
    raise ModelError(f"no output has the shape [rows, classes]; the outputs are {shapes}")


def _compute_squared_errors(outputs: dict[str, Array], labels: Array | None) -> Array:
    """Return the squared difference between the first output and the labels."""
    assert labels is not None, "parse_metric checks it"
    name, array = next(iter(outputs.items()))
    if array.size != labels.size:
        raise DataError(
            f"labels have shape {list(labels.shape)}, and output {name!r} has shape "
            f"{list(array.shape)}"
        )
    return np.asarray(np.square(array.astype(np.float64).ravel() - labels.ravel()))
