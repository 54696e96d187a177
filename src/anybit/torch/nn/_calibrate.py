# SPDX-License-Identifier: Apache-2.0
"""Scales from data, without training."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from anybit.errors import ModelError
from anybit.quantization.statistics import Statistics
from anybit.torch.modes import evaluating, unwrapped
from anybit.torch.nn._choices import Reader, Trial, quantized_at, weight_scale
from anybit.torch.nn._layers import QuantizedLayer
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._samples import Samples
from anybit.torch.nn._stored_scales import FixedScale, StoredScale

# What all samples that are kept may take.
_MEMORY = 2**28


def calibrate(model: torch.nn.Module, batches: Any) -> torch.nn.Module:
    """Set the scales of a model that has quantizers from data, as `anybit.quantize` does.

    The batches are run once, in eval mode and with all quantizers off. Learned and "ema" scales of
    weights then become those with the least squared error, per channel; scales of activations
    those with the least error of what the layers that read them give, with quantized weights, on
    some of the data, if other data confirm it. Scales that are fixed, frozen, or computed in
    each call, stay. Weights, statistics of batch normalization, the mode of each module,
    gradients and the state of PyTorch's random numbers stay. Training may follow: scales go on
    from there.

    Unlike `anybit.quantize` it moves no ranges from activations to weights, changes no weight and
    no bias, and has no verdict.

    Args:
        model: A model from `quantize_model`, or with quantizers of its own. It is changed.
        batches: An iterable of batches, such as a data loader, or one tensor or mapping. A batch
            is a tensor, or a tuple or list of which the first element is the input and others, such
            as labels, are not read. An input is a tensor, a tuple of arguments, or a mapping of
            keyword arguments, of which those are taken that forward has. They go to the device of
            the model. At most 256 MiB of what the layers read are kept, or two rows for each.

    Returns:
        The model.

    Raises:
        ModelError: There are no quantizers with scales to find, or no batches with rows; a tensor
            that is to be quantized holds NaN or infinity. No scale is changed then.

    >>> from anybit.torch.nn import quantize_model
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> model = quantize_model(model, {"weight": "int4", "activation": "int8"})
    >>> model = calibrate(model, [torch.rand(16, 8)])
    >>> model.eval()(torch.rand(1, 8)).shape
    torch.Size([1, 2])
    """
    whole = unwrapped(model)
    found = {each: name for name, each in whole.named_modules() if isinstance(each, Quantizer)}
    wanted = {each: name for each, name in found.items() if _is_wanted(each)}
    if not wanted:
        raise ModelError(
            "the model has no quantizers with scales to find: call quantize_model before, with "
            '"learned" or "ema" scales'
        )
    for each, name in wanted.items():
        if each.scale.state is None:
            raise ModelError(f"{name!r} does not know how many channels there are: give channels=")
    layers = [each for each in whole.modules() if isinstance(each, QuantizedLayer)]
    with evaluating(whole), _same_random_numbers(whole):
        scales = _of_parameters(layers, wanted)
        inputs = {each: name for each, name in wanted.items() if each not in scales}
        records = {each: _Record(each, name, len(inputs)) for each, name in inputs.items()}
        _run(whole, found, records, batches)
        readers = _readers(layers, scales)
        for quantizer, record in records.items():
            if record.statistics.count:
                read = readers.get(quantizer, [(_same, _same)])
                trial = Trial(quantizer, read, _channels(quantizer, layers))
                scales[quantizer] = trial.chosen(record.statistics, *record.samples.divided())
    for quantizer, scale in scales.items():
        quantizer.scale.set(scale)
    return model


def _is_wanted(quantizer: Quantizer) -> bool:
    scale = quantizer.scale
    fixed = not isinstance(scale, StoredScale) or isinstance(scale, FixedScale)
    return not (fixed or scale.frozen)


class _Record:
    """What one quantizer is given."""

    def __init__(self, quantizer: Quantizer, name: str, shares: int) -> None:
        layout = quantizer.scale.layout
        axis = 1 if layout.axis is None else layout.axis
        self.statistics = Statistics(name, axis if layout.per_channel else None)
        self.samples = Samples(_MEMORY // shares)
        self._batch_axis = layout.batch_axis
        self._channels = -axis if axis < 0 else 0

    def add(self, x: torch.Tensor) -> None:
        # Numbers of float16 and bfloat16 are numbers of float32.
        self.statistics.add(x.detach().float().cpu().numpy())
        if x.numel():
            has_rows = self._batch_axis == 0 and x.ndim > max(self._channels, 1)
            self.samples.add(x.detach(), has_rows)


def _of_parameters(
    layers: Iterable[QuantizedLayer], wanted: Mapping[Quantizer, str]
) -> dict[Quantizer, torch.Tensor]:
    """The scales for weights and biases."""
    found = {}
    for layer in layers:
        for _, values, quantizer in layer.quantized_parameters():
            if quantizer in wanted:
                _check_finite(values, wanted[quantizer], "its layer's parameters")
                scale = weight_scale(quantizer, values)
                found[quantizer] = quantizer.scale.known() if scale is None else scale
    return found


def _readers(
    layers: Iterable[QuantizedLayer], scales: Mapping[Quantizer, torch.Tensor]
) -> dict[Quantizer, list[tuple[Reader, Reader]]]:
    """By the quantizer of their inputs, layers in floats, and with the weights they will have."""
    found: dict[Quantizer, list[tuple[Reader, Reader]]] = {}
    for layer in layers:
        if layer.input_quantizer is None:
            continue
        floats = dict(layer.named_parameters(recurse=False))
        rounded = dict(floats)
        for name, values, quantizer in layer.quantized_parameters():
            if quantizer in scales:
                rounded[name] = quantized_at(quantizer, scales[quantizer], values)
            elif not name.startswith("bias"):
                rounded[name] = quantizer(values)
        pair = (partial(layer.read, values=floats), partial(layer.read, values=rounded))
        found.setdefault(layer.input_quantizer, []).append(pair)
    return found


def _channels(quantizer: Quantizer, layers: Iterable[QuantizedLayer]) -> int:
    """How many channels its tensor has, of whose values some might be cut off; 1 if unknown."""
    layout = quantizer.scale.layout
    read = [each.channels()[0] for each in layers if each.input_quantizer is quantizer]
    return layout.channels or 1 if layout.per_channel else max(read, default=1)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _run(
    model: torch.nn.Module,
    quantizers: Mapping[Quantizer, str],
    records: Mapping[Quantizer, _Record],
    batches: Any,
) -> None:
    """Run all batches, and record what quantizers are given while they do nothing."""
    count = 0

    def see(quantizer: Quantizer, x: torch.Tensor, scale: Any = None) -> torch.Tensor:
        if quantizer in records:
            _check_finite(x, quantizers[quantizer], f"batch {count}")
            records[quantizer].add(x)
        return x

    takes = inspect.signature(model.forward).parameters
    one = isinstance(batches, torch.Tensor | Mapping)
    with _replaced_calls(quantizers, see):
        for batch in [batches] if one else batches:
            positional, named = _arguments(batch, takes)
            tensors = _on_device_of(model, (positional, named))
            model(*tensors[0], **tensors[1])
            count += 1
    if not count:
        raise ModelError("there are no batches: give some data")
    if records and not any(each.statistics.count for each in records.values()):
        raise ModelError("the batches have no rows: give some data")


@contextmanager
def _replaced_calls(quantizers: Iterable[Quantizer], call: Any) -> Iterator[None]:
    """Call that instead of the quantizers, without asking for scales."""
    with ExitStack() as stack:
        for each in quantizers:
            for module, function in ((each, partial(call, each)), (each.scale, _one)):
                stack.callback(delattr, module, "forward")
                # The instance's, which calls prefer to that of its class.
                module.__dict__["forward"] = function
        yield


def _one(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(())


def _arguments(batch: Any, takes: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for forward that a batch stands for."""
    if isinstance(batch, tuple | list):
        if not batch:
            raise ModelError("a batch is an empty tuple or list: give inputs")
        batch = batch[0]
    if isinstance(batch, Mapping):
        anything = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        return (), {name: each for name, each in batch.items() if anything or name in takes}
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def _on_device_of(model: torch.nn.Module, arguments: Any) -> Any:
    tensors = [*model.parameters(), *model.buffers()]

    def moved(leaf: Any) -> Any:
        leaf = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        return leaf.to(tensors[0].device) if isinstance(leaf, torch.Tensor) else leaf

    return _pytree.tree_map(moved, arguments)


@contextmanager
def _same_random_numbers(model: torch.nn.Module) -> Iterator[None]:
    """Data loaders that shuffle draw numbers, and modules may: they are drawn again later."""
    devices = {each.device for each in model.parameters() if each.device.type == "cuda"}
    with torch.random.fork_rng(list(devices)):
        yield


def _check_finite(x: torch.Tensor, name: str, where: str) -> None:
    if not bool(x.isfinite().all()):
        raise ModelError(
            f"{name!r} is given NaN or infinity by {where}: leave those data out, or keep its "
            'layer in float ("skip")'
        )
