# SPDX-License-Identifier: Apache-2.0
"""Worth of the heuristics of `anybit.quantize`: the loss of SQNR if one is switched off.

    python benchmarks/ptq/heuristics.py FOLDER [--only TASK] [--switch NAME]

Each model is quantized in several formats with every heuristic, and with one of them switched off.
The loss is the difference of the worst output's SQNR on the evaluation split, in dB. A run that
raises, or whose outputs are not finite, has failed. FOLDER keeps exported models and runs.json,
which accumulates several calls. `_tasks.py` and `_signals.py` have the models.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import _direction
import _magika
import _sentences
import _signals
import numpy as np
import onnxruntime
from _tasks import Array, Task, make_parser
from rich.console import Console
from rich.table import Table

import anybit
from anybit.ptq import config
from anybit.ptq.algorithms import gptq, registry
from anybit.ptq.calibration import collect
from anybit.ptq.search import candidates, layer_search

# Outputs by name, over the whole split.
Outputs = dict[str, Array]
EVERYTHING = "everything"


@dataclass(frozen=True)
class Switch:
    """Fields of the configuration, and names in modules, that switch a heuristic off.

    Attributes:
        fields: Values by the part of the configuration and its field.
        functions: Module, name and substitute of a function or list.
    """

    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    functions: tuple[tuple[ModuleType, str, Any], ...] = ()

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Switch the heuristic off inside a `with` block."""
        parts = {
            name: replace(getattr(config.DEFAULT, name), **values)
            for name, values in self.fields.items()
        }
        with ExitStack() as stack:
            presets = {"default": replace(config.DEFAULT, **parts)}
            stack.enter_context(patch.dict(config.PRESETS, presets))
            for module, name, substitute in self.functions:
                stack.enter_context(patch.object(module, name, substitute))
            yield


def _round_without_costs(array: Array, weight: Any, spec: Any, limits: Any, costs: Any) -> Any:
    return _ROUND_TO_NEAREST(array, weight, spec, limits)


_ROUND_TO_NEAREST = gptq.round_to_nearest
_MAKE_VARIANTS = candidates.make_variants

SWITCHES = {
    EVERYTHING: Switch(),
    "GPTQ": Switch(functions=((layer_search, "is_wide", lambda *arguments: True),)),
    "GPTQ damping by rows": Switch({"gptq": {"damping_per_term": 0.0}}),
    "costs from GPTQ": Switch(functions=((gptq, "round_to_nearest", _round_without_costs),)),
    "AWQ": Switch(functions=((registry, "WEIGHT_SCALINGS", []),)),
    "SmoothQuant": Switch({"scaling": {"strengths": ()}}),
    "outlier scaling": Switch({"scaling": {"outlier_shares": ()}}),
    "headroom of channels": Switch({"scaling": {"headroom": 0}}),
    "range clipping": Switch({"ranges": {"fractions": ()}}),
    "clipping of scaled ranges": Switch({"ranges": {"scaled_fractions": ()}}),
    "no clipping of few values": Switch(
        functions=((layer_search, "may_clip", lambda *arguments: True),)
    ),
    "wider range at 12 bits": Switch({"ranges": {"wide_factor": 1.0}}),
    "weight clipping": Switch({"weights": {"shares": (1.0,)}}),
    "bias correction": Switch(functions=((registry, "BIAS_CORRECTIONS", []),)),
    "more small samples": Switch({"calibration": {"most_times": 1}}),
    "samples of largest magnitude": Switch(
        functions=((collect, "_select_largest", lambda *arguments: ((), ())),)
    ),
    "ablation": Switch(
        functions=((candidates, "make_variants", lambda params: _MAKE_VARIANTS(params)[:1]),)
    ),
}
SPECS: dict[str, dict[str, str | None]] = {
    "int8 / uint8": {},
    "int4 / uint8": {"weights": "int4"},
    "int4 / float": {"weights": "int4", "activations": "float"},
    "int4 / uint4": {"weights": "int4", "activations": "uint4"},
    "int3 / uint6": {"weights": "int3", "activations": "uint6"},
    "mxfp4 / float": {"weights": "mxfp4", "activations": "float"},
}


def run_float(task: Task) -> Outputs:
    """Return the outputs of the float model by ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(task.model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(None, dict(batch)) for batch in task.evaluation]
    return {
        name: np.concatenate([np.ravel(run[index]) for run in runs])
        for index, name in enumerate(names)
    }


def measure(task: Task, specs: Mapping[str, str | None], expected: Outputs) -> float | None:
    """Quantize a model and return the SQNR of its worst output; None if that fails."""
    try:
        model = anybit.load(anybit.quantize(task.model, task.calibration, **specs))
        runs = [model.run(batch) for batch in task.evaluation]
    except (anybit.ModelError, ValueError):
        return None
    ratios = []
    for name, x in expected.items():
        y = np.concatenate([np.ravel(run[name]) for run in runs]).astype(np.float64)
        noise = float(np.square(x.astype(np.float64) - y).sum())
        if not math.isfinite(noise):
            return None
        if noise > 0:
            ratios.append(10 * math.log10(float(np.square(x, dtype=np.float64).sum()) / noise))
    return min(ratios, default=None)


def render(runs: Mapping[str, float | None]) -> Table:
    """Return the table of losses for the terminal."""
    table = Table("heuristic", "runs", "loss", "largest loss", "failed")
    for switch in SWITCHES:
        losses, failures = [], 0
        for key, value in runs.items():
            task, specs, name = key.split("|")
            whole = runs.get(f"{task}|{specs}|{EVERYTHING}")
            if name != switch or switch == EVERYTHING or whole is None:
                continue
            failures += value is None
            losses += [] if value is None else [whole - value]
        if losses:
            error = statistics.pstdev(losses) / math.sqrt(len(losses))
            cells = len(losses), f"{statistics.mean(losses):.1f} ± {error:.1f} dB", max(losses)
            table.add_row(switch, str(cells[0]), cells[1], f"{cells[2]:.1f} dB", str(failures))
    return table


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--switch", default="", help="switches whose name contains this")
    options = parser.parse_args()
    folder = options.folder
    tasks = {
        "digits": _signals.make_digits,
        "speech": _signals.make_speech,
        "pitch": _signals.make_pitch,
        "direction": _direction.task,
        "detector": _signals.make_detector,
        "magika": _magika.task,
        "sentences": lambda: _sentences.task(folder),
    }
    store = folder / "runs.json"
    runs: dict[str, float | None] = json.loads(store.read_text()) if store.exists() else {}
    for name, make_task in tasks.items():
        if options.only not in name:
            continue
        task = make_task()
        expected = run_float(task)
        for specs, arguments in SPECS.items():
            for switch, setting in SWITCHES.items():
                key = f"{name}|{specs}|{switch}"
                if key not in runs and (options.switch in switch or switch == EVERYTHING):
                    with setting.apply():
                        runs[key] = measure(task, arguments, expected)
                    store.write_text(json.dumps(runs, indent=1))
    Console(width=100).print(render(runs))


if __name__ == "__main__":
    main()
