# SPDX-License-Identifier: Apache-2.0
"""What data show of the quantizers of activations, and how long a sample takes."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import onnx_ir as ir

from anybit.inputs import declared_inputs
from anybit.quantization.independence import independent
from anybit.quantization.items import Sample
from anybit.quantization.recording import recording
from anybit.quantization.samples import Data, Samples
from anybit.quantization.shards import is_taken
from anybit.reporting.facts import Ran
from anybit.reporting.measuring import Gauge
from anybit.reporting.quantized_layers import Factor

# More samples show little more, spread over all that there are.
_MOST_SAMPLES = 64


@dataclass(frozen=True)
class Seen:
    """A run, and what each sample is called."""

    ran: Ran
    names: tuple[str, ...]


def run(
    model: ir.Model,
    gauges: Sequence[tuple[Factor, Gauge]],
    data: Data,
    where: str,
    progress: Callable[[float], None],
) -> Seen:
    """Show gauges what some of the samples are before and behind their quantizers.

    Raises:
        ModelError: Data that do not fit, or the model cannot be run.
    """
    samples = Samples(data, declared_inputs(model.graph, where))
    whole = recording(model, model.graph.outputs, where).recorder(alone=False)
    samples.take_whole_unless(independent(whole.run))
    values = [value for each, _ in gauges for value in (each.x, each.quantizer.node.outputs[0])]
    recorder = recording(model, values, where).recorder(alone=False)
    digest, shortest, count = sha256(), float("inf"), 0
    step = -(-len(samples) // _MOST_SAMPLES)
    for number, sample in enumerate(samples):
        digest.update(b"".join(_bytes(sample)))
        if is_taken(number, step):
            count += 1
            start = time.perf_counter()
            whole.run(sample)
            shortest = min(shortest, time.perf_counter() - start)
            arrays = recorder.run(sample) if gauges else {}
            for factor, gauge in gauges:
                x = arrays.get(str(factor.x.name))
                y = arrays.get(str(factor.quantizer.node.outputs[0].name))
                if x is not None and x.dtype.kind == "f":
                    gauge.add(x, y)
        progress((number + 1) / len(samples))
    ran = Ran(digest.hexdigest(), len(samples), count, shortest)
    return Seen(ran, tuple(samples.names()))


def _bytes(sample: Sample) -> Iterator[bytes]:
    for name, array in sorted(sample.items()):
        yield repr((name, str(array.dtype), array.shape)).encode()
        yield array.tobytes()
