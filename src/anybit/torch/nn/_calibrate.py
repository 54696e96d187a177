# SPDX-License-Identifier: Apache-2.0
"""Calibration: scales from data, without training."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from anybit.errors import ModelError
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.torch.modes import switch_to_eval, unwrap
from anybit.torch.nn._layers import QuantizedLayer
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._scale_search import Consumer, ScaleSearch, quantize_with, select_weight_scale
from anybit.torch.nn._scales import FixedScale, StoredScale


@dataclass(frozen=True)
class SampleConfig:
    """Limits of the samples that calibration keeps.

    Attributes:
        memory_bytes: The memory of the samples of all quantizers.
        max_batches: The most batches per quantizer.
        held_out_one_of: One of n batches is held out to confirm a choice.
    """

    memory_bytes: int = 2**28
    max_batches: int = 18
    held_out_one_of: int = 3


_CONFIG = SampleConfig()


def calibrate(model: torch.nn.Module, batches: Any) -> torch.nn.Module:
    """Set the scales of a model with quantizers from data, as `anybit.quantize` does.

    The batches are run once, in eval mode and with all quantizers off. Learned and "ema" scales of
    weights are set to the least squared error. Those of activations are set to the least error of
    the outputs of the layers that use them, with quantized weights, if held-out samples confirm it.
    Fixed, frozen and "absmax" scales do not change. Weights, statistics of batch normalization,
    modes of modules, gradients and the state of PyTorch's random numbers do not change either.
    Training may follow, and starts from these scales.

    Unlike `anybit.quantize`, this does not move ranges from activations to weights, does not change
    weights and biases, and does not report quality metrics.

    Args:
        model: A model from `quantize_model`, or with quantizers of its own. It is changed.
        batches: An iterable of batches, such as a data loader, or one tensor or mapping. A batch
            is an input, or a tuple or list whose first element is the input; others, such as
            labels, are ignored. An input is a tensor, a tuple of arguments, or a mapping of keyword
            arguments; names that forward does not have are ignored. Inputs are moved to the device
            of the model. At most 256 MiB of activations are kept, or two rows per quantizer.

    Returns:
        The model.

    Raises:
        ModelError: There are no quantizers with scales to set, or no batches with rows; a tensor
            to quantize has NaN or infinity. No scale is changed then.

    >>> from anybit.torch.nn import quantize_model
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model = quantize_model(model, {"weight": "int4", "activation": "int8"})
    >>> model = calibrate(model, [torch.rand(16, 8)])
    >>> model.eval()(torch.rand(1, 8)).shape
    torch.Size([1, 2])
    """
    module = unwrap(model)
    quantizers = {
        part: name for name, part in module.named_modules() if isinstance(part, Quantizer)
    }
    targets = {
        quantizer: name for quantizer, name in quantizers.items() if _has_free_scale(quantizer)
    }
    if not targets:
        raise ModelError(
            "the model has no quantizers with scales to set: call quantize_model first, with "
            '"learned" or "ema" scales'
        )
    for quantizer, name in targets.items():
        if quantizer.scale.state is None:
            raise ModelError(f"{name}: the number of channels is unknown; pass channels=")
    layers = [part for part in module.modules() if isinstance(part, QuantizedLayer)]
    with switch_to_eval(module), _restore_random_state(module):
        scales = _select_parameter_scales(layers, targets)
        inputs = {quantizer: name for quantizer, name in targets.items() if quantizer not in scales}
        taps = {
            quantizer: _CalibrationHook(quantizer, name, _CONFIG.memory_bytes // len(inputs))
            for quantizer, name in inputs.items()
        }
        _run(module, quantizers, taps, batches)
        consumers = _collect_consumers(layers, scales)
        for quantizer, tap in taps.items():
            if tap.statistics.count:
                outputs = consumers.get(quantizer, [(_return_unchanged, _return_unchanged)])
                search = ScaleSearch(quantizer, outputs, _count_channels(quantizer, layers))
                scales[quantizer] = search.select(tap.statistics, *tap.samples.split())
    for quantizer, scale in scales.items():
        quantizer.scale.set(scale)
    return model


def _has_free_scale(quantizer: Quantizer) -> bool:
    scale = quantizer.scale
    is_fixed = not isinstance(scale, StoredScale) or isinstance(scale, FixedScale)
    return not (is_fixed or scale.frozen)


class _CalibrationHook:
    """Statistics and samples of the inputs of one quantizer."""

    def __init__(self, quantizer: Quantizer, name: str, memory: int) -> None:
        layout = quantizer.scale.layout
        axis = 1 if layout.axis is None else layout.axis
        self.statistics = TensorStatistics(name, axis if layout.per_channel else None)
        self.samples = Samples(memory)
        self._batch_axis = layout.batch_axis
        self._channels = -axis if axis < 0 else 0

    def add(self, x: torch.Tensor) -> None:
        # float32 holds all values of float16 and bfloat16.
        self.statistics.add(x.detach().float().cpu().numpy())
        if x.numel():
            has_rows = self._batch_axis == 0 and x.ndim > max(self._channels, 1)
            self.samples.add(x.detach(), has_rows)


def _select_parameter_scales(
    layers: Iterable[QuantizedLayer], targets: Mapping[Quantizer, str]
) -> dict[Quantizer, torch.Tensor]:
    """Return the scales for weights and biases."""
    scales = {}
    for layer in layers:
        for _, values, quantizer in layer.quantized_parameters():
            if quantizer in targets:
                _check_finite(values, targets[quantizer], "its layer's parameters")
                scale = select_weight_scale(quantizer, values)
                scales[quantizer] = quantizer.scale.stored() if scale is None else scale
    return scales


def _collect_consumers(
    layers: Iterable[QuantizedLayer], scales: Mapping[Quantizer, torch.Tensor]
) -> dict[Quantizer, list[tuple[Consumer, Consumer]]]:
    """Return, by input quantizer, layers with float weights and with quantized weights."""
    consumers: dict[Quantizer, list[tuple[Consumer, Consumer]]] = {}
    for layer in layers:
        if layer.input_quantizer is None:
            continue
        floats = dict(layer.named_parameters(recurse=False))
        quantized = dict(floats)
        for name, values, quantizer in layer.quantized_parameters():
            if quantizer in scales:
                quantized[name] = quantize_with(quantizer, scales[quantizer], values)
            elif not name.startswith("bias"):
                quantized[name] = quantizer(values)
        pair = (
            partial(layer.compute_with, values=floats),
            partial(layer.compute_with, values=quantized),
        )
        consumers.setdefault(layer.input_quantizer, []).append(pair)
    return consumers


def _count_channels(quantizer: Quantizer, layers: Iterable[QuantizedLayer]) -> int:
    """Return the number of channels of the quantizer's tensor; 1 if unknown."""
    layout = quantizer.scale.layout
    widths = [layer.channels()[0] for layer in layers if layer.input_quantizer is quantizer]
    return layout.channels or 1 if layout.per_channel else max(widths, default=1)


def _return_unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def _run(
    model: torch.nn.Module,
    quantizers: Mapping[Quantizer, str],
    taps: Mapping[Quantizer, _CalibrationHook],
    batches: Any,
) -> None:
    """Run all batches with the quantizers off, and add their inputs to the taps."""
    count = 0

    def tap(quantizer: Quantizer, x: torch.Tensor, scale: Any = None) -> torch.Tensor:
        if quantizer in taps:
            _check_finite(x, quantizers[quantizer], f"batch {count}")
            taps[quantizer].add(x)
        return x

    parameters = inspect.signature(model.forward).parameters
    is_single = isinstance(batches, torch.Tensor | Mapping)
    with _replace_quantizers(quantizers, tap):
        for batch in [batches] if is_single else batches:
            positional, named = _move_to_device(model, _extract_arguments(batch, parameters))
            model(*positional, **named)
            count += 1
    if not count:
        raise ModelError("there are no batches: pass some data")
    if taps and not any(tap.statistics.count for tap in taps.values()):
        raise ModelError("the batches have no rows: pass some data")


@contextmanager
def _replace_quantizers(quantizers: Iterable[Quantizer], function: Any) -> Iterator[None]:
    """Call a function instead of the quantizers, and do not compute scales."""
    with ExitStack() as stack:
        for quantizer in quantizers:
            for module, forward in (
                (quantizer, partial(function, quantizer)),
                (quantizer.scale, _return_one),
            ):
                stack.callback(delattr, module, "forward")
                # An attribute of the instance hides the method of its class.
                module.__dict__["forward"] = forward
        yield


def _return_one(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(())


def _extract_arguments(
    batch: Any, parameters: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for forward in a batch."""
    if isinstance(batch, tuple | list):
        if not batch:
            raise ModelError("a batch is an empty tuple or list: pass inputs")
        batch = batch[0]
    if isinstance(batch, Mapping):
        takes_any = any(value.kind is value.VAR_KEYWORD for value in parameters.values())
        return (), {name: value for name, value in batch.items() if takes_any or name in parameters}
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def _move_to_device(model: torch.nn.Module, arguments: Any) -> Any:
    """Move tensors and arrays to the device of the model."""
    tensors = [*model.parameters(), *model.buffers()]

    def move(leaf: Any) -> Any:
        leaf = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        return leaf.to(tensors[0].device) if isinstance(leaf, torch.Tensor) else leaf

    return _pytree.tree_map(move, arguments)


@contextmanager
def _restore_random_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the random state, from which data loaders and modules may draw."""
    devices = {
        parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"
    }
    with torch.random.fork_rng(list(devices)):
        yield


def _check_finite(x: torch.Tensor, name: str, where: str) -> None:
    if not bool(x.isfinite().all()):
        raise ModelError(
            f"{name!r} gets NaN or infinity from {where}: remove such data, or skip its layer "
            '("skip" of quantize_model)'
        )


class Samples:
    """Samples of tensors, spread evenly over all additions, in bounded memory.

    Rows of batches are kept, at least one per batch, and the two rows with the largest magnitudes.

    Args:
        memory: Bytes for all samples; more if two rows need more.
        config: The limits.
    """

    def __init__(self, memory: int, config: SampleConfig = _CONFIG) -> None:
        self._memory, self._config = memory, config
        self._count, self._stride = 0, 1
        self._has_rows = False
        self._kept: list[tuple[int, torch.Tensor]] = []
        self._extremes: list[tuple[float, torch.Tensor]] = []

    def add(self, x: torch.Tensor, has_rows: bool) -> None:
        """Add samples of a tensor; rows are samples if `has_rows`, else all of it is one."""
        self._has_rows = has_rows
        if self._count % self._stride == 0:
            step = max(1, -(-x.nbytes * self._config.max_batches // self._memory))
            self._kept.append((self._count, (x[::step] if has_rows else x).clone()))
        self._count += 1
        while len(self._kept) > self._config.max_batches or (
            len(self._kept) > 2 and self.nbytes > self._memory
        ):
            self._stride *= 2
            self._kept = [pair for pair in self._kept if pair[0] % self._stride == 0]
        rows = x.abs().flatten(1).amax(dim=1) if has_rows else x.abs().amax()[None]
        largest = list(self._extremes)
        for magnitude, row in zip(*rows.topk(min(2, len(rows))), strict=True):
            largest.append((float(magnitude), x[row : row + 1] if has_rows else x))
        largest.sort(key=lambda pair: -pair[0])
        # A view would change with its tensor, and keep it in memory.
        self._extremes = [(magnitude, row.clone()) for magnitude, row in largest[:2]]

    @property
    def nbytes(self) -> int:
        """The memory of the samples of batches."""
        return sum(sample.nbytes for _, sample in self._kept)

    def split(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return samples to select by, and held-out samples, disjoint if there are several."""
        kept, period = [sample for _, sample in self._kept], self._config.held_out_one_of
        if len(kept) == 1 and self._has_rows:
            parts = [kept[0][start::period] for start in range(period)]
            kept = [part for part in parts if len(part)]
        held_out = kept[1::period] or kept
        selection = [sample for index, sample in enumerate(kept) if index % period != 1]
        extremes = [row for _, row in self._extremes]
        return [*selection, *extremes[:1]], [*held_out, *extremes[-1:]]
