# SPDX-License-Identifier: Apache-2.0
"""Functions of C, one per instruction of a program."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial, singledispatchmethod
from typing import Any

import numpy as np

from anybit.compiler.backends.c.constants import Constant, Constants
from anybit.compiler.backends.c.distances import find_window_distance
from anybit.compiler.backends.c.element_places import (
    find_channel_step,
    locate_in_order,
    locate_in_port,
    locate_sum,
)
from anybit.compiler.backends.c.epilogues import CommonScaling, Epilogue, Sums, emit_epilogue
from anybit.compiler.backends.c.expressions import (
    emit_first,
    emit_last,
    plus,
    times,
)
from anybit.compiler.backends.c.helpers import Helpers
from anybit.compiler.backends.c.literals import cast, format_offset, parenthesize
from anybit.compiler.backends.c.pairs import emit_pair
from anybit.compiler.backends.c.parameters import PLACES, Parameter, Place
from anybit.compiler.backends.c.templates import render
from anybit.compiler.backends.c.types import CType, StoredTensor
from anybit.compiler.backends.c.weights import (
    PackedWeights,
    Packing,
    interleave_rows,
    pack_rows,
    pack_taps,
)
from anybit.compiler.backends.integer_epilogues import find_reach
from anybit.compiler.backends.integer_pairs import IntegerPair, fit_pair
from anybit.compiler.backends.integer_steps import EqualSteps, fit_equal_steps
from anybit.compiler.backends.integer_tables import fit_table
from anybit.compiler.backends.integer_thresholds import order_floats, order_thresholds
from anybit.compiler.backends.shared_rows import share_rows
from anybit.compiler.partition.windows import is_padded
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import unpack_weights
from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array

_ROWS = (4, 2, 1)
"""Rows of weights that are multiplied together: the most that divide the channels of a group."""

_BLOCK = 4
"""Channels of a depthwise product that are computed together where there are pairs of products."""

_TOGETHER, _MOST_TAPS = 8, 49
"""Divisor of the channels of depthwise products that x86 computes in tiles, and most weights."""

_FEW_CHANNELS = 4
"""Up to this number of input channels, unequal factors and offsets become part of thresholds."""

_MANY_STEPS, _MANY_ELEMENTS = 32, 512
"""From these numbers on, thresholds at equal steps are a line; below, they are searched."""

_LARGE_TABLE = 1024
"""From this number of entries on, a table of two tensors becomes arithmetic if it can."""


class FunctionForm(Enum):
    """Kinds of functions: their names where layers share them, and what they compute."""

    PIXELS = "multiply", "Products of weights and elements that lie together"
    WINDOW = "convolve", "Products of weights and the elements of a window, which are copied"
    CHANNELS = "convolve_channels", "Products of each channel with weights of its own"
    MAXIMUM = "find_maxima", "The largest elements of windows"
    ELEMENTS = "map_elements", "A function of elements"
    QUANTIZE = "quantize", "Elements of floats"
    DEQUANTIZE = "dequantize", "Floats of elements"
    MOVE = "move_elements", "Elements in other places"

    def __init__(self, function: str, purpose: str) -> None:
        self.function, self.purpose = function, purpose


@dataclass(frozen=True, eq=False)
class Layer:
    """A function of C.

    Attributes:
        name: Its name.
        form: Its kind.
        comment: Lines of the comment before it: its name, window and shapes.
        text: Its definition, with marks and places.
        helper: The definition of a function that it calls for each element.
        scratch: Bytes of memory that it needs besides its tensors.
        distance: Bytes by which its target has to begin before a source that nothing reads later;
            None if they must not overlap.
        refuses: Whether it refuses NaN.
        macs: Multiplications.
    """

    name: str
    form: FunctionForm
    comment: str
    text: str
    helper: str = ""
    scratch: int = 0
    distance: int | None = None
    refuses: bool = False
    macs: int = 0


@dataclass
class LayerEmitter:
    """Emits the functions of a program's instructions.

    Attributes:
        program: The program.
        tensors: Its tensors as C stores them.
        index: The type of indices: int, or int32_t where 16 bits are too few.
        small: Whether layers share functions, and five weights with three values a byte.
        constants: The arrays of the file.
        helpers: The shared functions of the file.
        common: A form for all multiplications and shifts, if layers share functions.
    """

    program: p.Program
    tensors: Sequence[StoredTensor]
    index: str
    small: bool
    constants: Constants = field(default_factory=Constants)
    helpers: Helpers = field(default_factory=Helpers)
    common: CommonScaling | None = None

    @singledispatchmethod
    def emit(self, at: Any, name: str) -> Layer:
        """Emit the function of an instruction under a name.

        Raises:
            ModelError: The instruction computes in floats.
        """
        raise ModelError(
            f"{name}: {type(at).__name__} computes in floats; C code has integers only. "
            "Quantize the model with --integer-only"
        )

    @emit.register
    def _(self, at: p.Product, name: str) -> Layer:
        x = self.tensors[at.source]
        floats = isinstance(at.epilogue, p.Arithmetic)
        y = self.program.outputs[at.target] if floats else self.tensors[at.target]
        weights = unpack_weights(at, y.channels, x.channels)
        source = self.program.tensors[at.source]
        depthwise = weights.shape[3] == 1 and at.groups > 1
        bias = np.zeros(y.channels, np.int64)
        if x.bias and not depthwise:
            bias = x.bias * weights.sum(axis=(1, 2, 3))
        sums = Sums(find_reach(at, source, y.channels), bias)
        target = None if isinstance(y, p.Port) else y
        epilogue = emit_epilogue(at.epilogue, sums, target, name, self.constants, self.common)
        self._note(epilogue)
        result = "float" if target is None else target.ctype.value
        lines = _mention_channel(epilogue.lines)
        values = {
            "x": _name_sizes(x),
            "y": y,
            "w": _name_window(at.window),
            "height": Parameter(y.height, "height"),
            "width": Parameter(y.width, "width"),
            "result": result,
            "padded": is_padded(at.window),
            "scaling": epilogue.scaling,
            "store": partial(locate_sum, y, in_order=not depthwise),
        }
        emit = self._emit_depthwise if depthwise else self._emit_dense
        text, scratch = emit(at, name, weights, values)
        distance: int | None = None
        if target:
            pixel = y.channels * target.ctype.size
            size = y.height, y.width, pixel
            distance = find_window_distance(at.window, x, size, by_rows=depthwise)
        return Layer(
            name,
            FunctionForm.CHANNELS
            if depthwise
            else FunctionForm.WINDOW
            if scratch
            else FunctionForm.PIXELS,
            self._describe(at, name, x, y),
            text,
            self._render("epilogue.c.j2", result=result, epilogue=lines, scaling=values["scaling"]),
            scratch=scratch,
            distance=distance,
            macs=weights.size * y.height * y.width,
        )

    def _render(self, template: str, **values: Any) -> str:
        return render(template, **PLACES, index=self.index, **values)

    def _emit_dense(
        self, at: p.Product, name: str, weights: Array, values: dict[str, Any]
    ) -> tuple[str, int]:
        x: StoredTensor = values["x"]
        rows = weights.reshape(len(weights), -1)
        largest = max(abs(x.lowest), abs(x.highest), abs(x.zero))
        packed = pack_rows(rows, largest, ternary=self.small)
        size = len(weights) // at.groups
        together = next(count for count in _ROWS if size % count == 0)
        fill = packed.packing is not Packing.TERNARY
        blocks = interleave_rows(packed.rows, together, fill=fill)
        array = self._add_weights(name, blocks, packed.packing)
        binary = packed.packing is Packing.UINT1 and (x.lowest, x.highest, x.zero) == (0, 1, 0)
        self.helpers.dots.add((x.ctype, packed.packing, together, binary))
        if packed.low:
            self.helpers.sums.add(x.ctype)
        w = at.window
        in_rows = at.groups == 1 and w.dilation_width == 1
        single = w.kernel_height == 1 or (w.kernel_width == x.width and w.dilation_height == 1)
        patch = values["padded"] or not (in_rows and single)
        channels = Parameter(size, "group_channels" if at.groups > 1 else "channels")
        # On x86, with the unaligned loads and the order of bytes that it has.
        tiles = (
            (at.groups, together, packed.packing, packed.step) == (1, 4, Packing.UINT8, 1)
            and x.ctype.size == 1
            and isinstance(values["y"], StoredTensor)
        )
        if tiles:
            self.helpers.tiles = True
        else:
            values["scaling"] = None
        self.helpers.scalings |= values["scaling"] is not None
        text = self._render(
            "product.c.j2",
            **values,
            tiles=tiles,
            patch=patch,
            in_rows=in_rows,
            groups=at.groups,
            inner=Parameter(weights.shape[3], "inner"),
            size=Parameter(rows.shape[1], "size"),
            packed=replace(packed, low=Parameter(packed.low, "low")),
            zero=Parameter(x.zero, "zero", x.ctype.value),
            weights=array,
            row_bytes=Parameter(blocks.shape[1] // together, "row_bytes"),
            rows=together,
            binary=binary,
            channels=channels,
            one_block=size == together,
        )
        return text, rows.shape[1] * x.ctype.size if patch else 0

    def _emit_depthwise(
        self, at: p.Product, name: str, weights: Array, values: dict[str, Any]
    ) -> tuple[str, int]:
        x: StoredTensor = values["x"]
        taps, channels = weights[0].size, len(weights)
        lowest, highest = x.lowest + x.bias, x.highest + x.bias
        largest = max(abs(lowest), abs(highest))
        packed = pack_taps(weights.reshape(channels, -1), largest)
        alike = bool(np.all(weights == weights.flat[0]))  # such as the weights of a mean
        array = None if alike else self._add_weights(name, packed.rows, packed.packing)
        blocks = array is not None and channels == at.groups and channels % _BLOCK == 0
        # With pairs of products, some sums are computed 256 times as large.
        pairs = blocks and x.ctype.size == 1 and taps * largest * 128 * 256 < 2**31
        self.helpers.four_bytes |= pairs
        named = Parameter(channels, "channels")
        w = replace(
            values["w"],
            kernel_height=at.window.kernel_height,
            kernel_width=at.window.kernel_width,
            dilation_height=at.window.dilation_height,
            dilation_width=at.window.dilation_width,
        )
        weight, bias = Parameter(weights.flat[0], "weight"), Parameter(x.bias, "bias")
        element = f"((int32_t)from[place] + {bias})" if x.bias else "(int32_t)from[place]"
        if alike and weight == 1 and not x.bias:
            element = "from[place]"
        together = self._select_block(channels)
        vectors = together if blocks and packed.packing is Packing.INT8 else 0
        y_step = find_channel_step(values["y"])
        in_order = isinstance(values["y"], StoredTensor) and y_step == 1
        windows = vectors >= _TOGETHER and taps <= _MOST_TAPS and x.ctype.size == 1 and in_order
        if not windows:
            values["scaling"] = None
        self.helpers.windows |= windows
        self.helpers.scalings |= values["scaling"] is not None
        text = self._render(
            "depthwise.c.j2",
            **values | {"w": w},
            y_step=y_step,
            channels=named,
            multiple=channels // at.groups,
            taps=taps,
            packed=packed,
            weights=array,
            digit=partial(_emit_digit, packed, array, taps, channels) if array else None,
            first=partial(emit_first, cast="" if self.index == "int" else "(int)"),
            last=partial(emit_last, cast="" if self.index == "int" else "(int)"),
            weight=f" * {weight}" if alike and weight != 1 else "",
            element=element,
            pairs=pairs,
            vectors=vectors,
            windows=windows,
        )
        return text, 0

    def _select_block(self, channels: int) -> int:
        """Return how many channels of a depthwise product vectors have; layers share a function."""
        others = [t.channels for t in self.tensors if t.channels % _TOGETHER == 0]
        most = 16 if not self.small or all(n % 16 == 0 for n in others) else _TOGETHER
        return next((n for n in (16, 8, 4) if channels % n == 0 and n <= most), 0)

    def _add_weights(self, name: str, rows: Array, packing: Packing) -> Any:
        ctype = CType.INT8 if packing is Packing.INT8 else CType.UINT8
        return self.constants.add(f"{name}_weights", rows, ctype)

    def _note(self, epilogue: Epilogue) -> None:
        if epilogue.searched:
            self.helpers.searches.add(epilogue.searched)
        calls = re.findall(r"(larger|smaller)\(", "\n".join(epilogue.lines))
        self.helpers.floats.update(calls)

    @emit.register
    def _(self, at: p.MaxPool, name: str) -> Layer:
        x, y = self.tensors[at.source], self.tensors[at.target]
        text = self._render(
            "max_pool.c.j2",
            x=_name_sizes(x),
            w=_name_window(at.window),
            height=Parameter(y.height, "height"),
            width=Parameter(y.width, "width"),
            padded=is_padded(at.window),
        )
        row = y.height, y.width, y.channels * y.ctype.size
        comment, distance = self._describe(at, name, x, y), find_window_distance(at.window, x, row)
        return Layer(name, FunctionForm.MAXIMUM, comment, text, distance=distance)

    @emit.register
    def _(self, at: p.Quantize, name: str) -> Layer:
        port, y = self.program.inputs[at.source], self.tensors[at.target]
        self.helpers.orders_floats = True
        differs = any(np.any(numbers != numbers[:1]) for numbers in (at.factors, at.offsets))
        arithmetic: list[str] = []
        if differs and y.channels > _FEW_CHANNELS:
            keys, directions = order_floats(at.thresholds)[None], at.directions
            arithmetic = self._emit_scaling(at, name)
        else:
            keys, directions = order_thresholds(at, y.levels)
        steps = y.levels - 1
        count, batch = "0", None
        if steps:
            array = self.constants.add(f"{name}_thresholds", keys)
            many = steps >= _MANY_STEPS and y.elements >= _MANY_ELEMENTS
            line = fit_equal_steps(keys[0]) if many and len(keys) == 1 else None
            if line and array.ctype is CType.INT32:
                count = self._emit_line(line, array, steps)
            else:
                if len(keys) == 1 and at.nan < 0 and (directions > 0).all():
                    batch = array
                    self.helpers.batches.add(array.ctype)
                self.helpers.searches.add(array.ctype)
                place = format_offset(steps, len(keys))
                start = array.symbol if len(keys) == 1 else f"{array.symbol} + {place}"
                count = array.count("key", start, steps)
        lines = [f"const int count = {count};"]
        if (directions < 0).all():
            lines = [f"const int count = {steps} - {count};"]
        elif (directions < 0).any():
            signs = self.constants.add(f"{name}_directions", directions).at("channel")
            lines = [
                f"const int reached = {count};",
                f"const int count = {signs} < 0 ? {steps} - reached : reached;",
            ]
        lines.append(f"*y++ = {cast(y.ctype.value, y.element('count'))};")
        text = self._render(
            "quantize.c.j2",
            y=y,
            batch=batch,
            steps=steps,
            refuses=at.nan < 0,
            nan=y.lowest + y.step * at.nan,
            lines=lines,
            place=partial(locate_in_port, port),
            arithmetic=arithmetic,
        )
        comment = f"{name}: float32 to {y.ctype.value}, {y.shape}"
        return Layer(name, FunctionForm.QUANTIZE, comment, text, refuses=at.nan < 0)

    def _emit_line(self, line: EqualSteps, array: Constant, steps: int) -> str:
        """Return the number of thresholds at equal steps that `key` reaches."""
        self.helpers.steps = True
        parts = [str(Parameter(getattr(line, part.name), part.name)) for part in fields(line)]
        return f"count_steps(key, {array.symbol}, {steps}, {', '.join(parts)})"

    def _emit_scaling(self, at: p.Quantize, name: str) -> list[str]:
        """Return statements for a float x; stores to memory keep a compiler from contracting."""
        lines = []
        for part, numbers, symbol in (("factors", at.factors, "*"), ("offsets", at.offsets, "+")):
            if numbers.size:
                array = self.constants.add(f"{name}_{part}", numbers, CType.FLOAT)
                lines.append(f"scaled = scaled {symbol} {array.at('channel')};")
        return lines

    @emit.register
    def _(self, at: p.Dequantize, name: str) -> Layer:
        x, port = self.tensors[at.source], self.program.outputs[at.target]
        values = at.values.reshape(-1, x.levels)
        array = self.constants.add(f"{name}_values", values, CType.FLOAT)
        start = f"{format_offset(x.levels, len(values))} + " if len(values) > 1 else ""

        def read_value(pixel: str, channel: str) -> str:
            element = f"x[{plus(times(pixel, x.channels), channel)}]"
            return array.at(parenthesize(start + x.index(element)))

        text = self._render(
            "dequantize.c.j2",
            x=x,
            place=partial(locate_in_port, port),
            value=read_value,
        )
        comment = f"{name}: {x.ctype.value} to float32, {x.shape}"
        return Layer(name, FunctionForm.DEQUANTIZE, comment, text)

    @emit.register
    def _(self, at: p.Lookup, name: str) -> Layer:
        x, y = self.tensors[at.source], self.tensors[at.target]
        array, start = self._add_elements(name, y, at.entries.reshape(-1, x.levels))
        element = array.at(parenthesize(start + x.index("*a")))
        lines = [f"*y++ = {element};", "a++;"]
        return self._emit_elements(name, (x,), y, lines, per_channel=bool(start))

    def _add_elements(self, name: str, y: StoredTensor, entries: Array) -> tuple[Constant, str]:
        """Add a table of indices per channel, equal ones once; return where one starts, too."""
        rows, places = share_rows(entries)
        channel = "channel"
        if 1 < 2 * len(rows) <= len(entries):
            channel = self.constants.add(f"{name}_tables", places).at(channel)
        elif len(rows) > 1:
            rows = entries
        elements = y.lowest + y.step * rows.astype(np.int64)
        array = self.constants.add(f"{name}_elements", elements, y.ctype)
        return array, f"{channel} * (int32_t){entries.shape[1]} + " if len(rows) > 1 else ""

    @emit.register
    def _(self, at: p.Combine, name: str) -> Layer:
        a, b, y = (self.tensors[i] for i in (at.first, at.second, at.target))
        entries = at.entries.reshape(-1, a.levels * b.levels)
        large = len(entries) == 1 and entries.size >= _LARGE_TABLE
        fitted = fit_table(entries[0], (a.levels, b.levels)) if large else None
        if fitted is not None:
            return self._emit_pair(fitted, (a, b), y, name)
        array, start = self._add_elements(name, y, entries)
        pair = f"{a.index('*a')} * (int32_t){b.levels} + {b.index('*b')}"
        lines = [f"*y++ = {array.at(f'({start}{pair})')};"]
        return self._emit_elements(name, (a, b), y, lines, per_channel=bool(start))

    @emit.register(p.Add)
    @emit.register(p.Multiply)
    def _(self, at: p.Add | p.Multiply, name: str) -> Layer:
        a, b, y = (self.tensors[i] for i in (at.first, at.second, at.target))
        return self._emit_pair(fit_pair(at, a.levels, b.levels), (a, b), y, name)

    def _emit_pair(
        self,
        pair: IntegerPair,
        inputs: tuple[StoredTensor, StoredTensor],
        y: StoredTensor,
        name: str,
    ) -> Layer:
        a, b = inputs
        body = emit_pair(pair, y, name, self.constants)
        self._note(body)
        call = f"{Place.NAME}_element({Place.ARGUMENT}{a.index('*a')}, {b.index('*b')})"
        layer = self._emit_elements(name, (a, b), y, [f"*y++ = {call};"], per_channel=False)
        return replace(layer, helper=self._render("pair.c.j2", y=y, lines=body.lines))

    def _emit_elements(
        self,
        name: str,
        inputs: Sequence[StoredTensor],
        y: StoredTensor,
        lines: Sequence[str],
        *,
        per_channel: bool,
    ) -> Layer:
        """Emit a function of elements; pairs of tensors advance here, not in the lines."""
        repeated = [x.channels == 1 < y.channels for x in inputs]
        per_channel |= any(repeated)
        if len(inputs) > 1:
            lines = [*lines, *(f"{'ab'[i]}++;" for i in range(2) if not repeated[i])]
        pixels = y.height * y.width if per_channel else y.elements
        text = self._render(
            "elements.c.j2",
            inputs=inputs,
            y=y,
            pixels=Parameter(pixels, "pixels"),
            channels=Parameter(y.channels, "channels") if per_channel else 1,
            lines=lines,
        )
        comment = f"{name}: {' and '.join(x.shape for x in inputs)} -> {y.shape}"
        in_place = y.ctype.size <= min(x.ctype.size for x in inputs) and not any(repeated)
        return Layer(name, FunctionForm.ELEMENTS, comment, text, distance=0 if in_place else None)

    @emit.register
    def _(self, at: p.Gather, name: str) -> Layer:
        x, y = self.tensors[at.source], self.tensors[at.target]
        names = ("rows", "columns", "channels")
        lists = (at.rows, at.columns, at.channels)
        reads = [
            self._emit_sequence(f"{name}_{part}", numbers.astype(np.int64))
            for part, numbers in zip(names, lists, strict=True)
        ]
        text = self._render(
            "gather.c.j2",
            x=x,
            y=y,
            count=len(at.channels),
            read_row=reads[0],
            read_column=reads[1],
            read_channel=reads[2],
            first_channel=at.first_channel,
            fills=any((numbers < 0).any() for numbers in lists),
            fill=y.lowest + y.step * at.fill,
        )
        comment = f"{name}: moves elements, {x.shape} -> {y.shape}"
        return Layer(name, FunctionForm.MOVE, comment, text)

    def _emit_sequence(self, name: str, numbers: Array) -> Callable[[str], str]:
        """Return a function of a place in a list that returns the expression of its element.

        It is arithmetic if the list is a progression.
        """
        steps = np.diff(numbers)
        if numbers.min() >= 0 and (not steps.size or np.all(steps == steps[0])):
            step = int(steps[0]) if steps.size else 0
            return lambda place: plus(times(place, step) if step else "0", int(numbers[0]))
        return self.constants.add(name, numbers).at

    @emit.register
    def _(self, at: p.Reshape, name: str) -> Layer:
        x, y = self.tensors[at.source], self.tensors[at.target]
        text = self._render(
            "reshape.c.j2",
            x=x,
            source=partial(locate_in_order, x, at.source_channels_first),
            target=partial(locate_in_order, y, at.target_channels_first),
        )
        comment = f"{name}: {x.shape} in another order, {y.shape}"
        return Layer(name, FunctionForm.MOVE, comment, text)

    def _describe(self, at: p.Product | p.MaxPool, name: str, x: StoredTensor, y: Any) -> str:
        w = at.window
        kind = "maximum" if isinstance(at, p.MaxPool) else "product"
        shape = f"{y.height} x {y.width} x {y.channels}"
        window = f"{w.kernel_height} x {w.kernel_width} {kind}"
        return f"{name}: {window}, {x.shape} -> {shape}"


def _emit_digit(
    packed: PackedWeights, array: Constant, taps: int, channels: int, tap: str, channel: str
) -> str:
    """Return the expression of weight i of a channel, from digits."""
    per = packed.packing.per_byte
    named = str(Parameter(channels, "channels"))
    wide = f"(int32_t){named}" if taps * channels >= 2**15 else named
    place = plus(tap if tap == "0" else f"{tap} * {wide}", channel)
    byte = array.at(f"({parenthesize(place)} >> {per.bit_length() - 1})")
    bits = 8 // per
    digit = f"({byte} >> {bits} * ({parenthesize(place)} & {per - 1}) & {2**bits - 1})"
    if packed.step != 1:
        digit = f"{packed.step} * {digit}"
    return f"{packed.low} + {digit}" if packed.low else digit


def _mention_channel(lines: Sequence[str]) -> Sequence[str]:
    """Return statements that mention the channel, as compilers ask of every parameter."""
    mentions = any(re.search(r"\bchannel\b", line) for line in lines)
    return lines if mentions else ("(void)channel;", *lines)


def _name_window(window: p.Window) -> p.Window:
    """Return a window whose sizes are parameters."""
    names = [part.name for part in fields(window)]
    return p.Window(*(Parameter(getattr(window, name), name) for name in names))


def _name_sizes(x: StoredTensor) -> StoredTensor:
    """Return a source whose sizes are parameters."""
    return replace(
        x,
        height=Parameter(x.height, "x_height"),
        width=Parameter(x.width, "x_width"),
        channels=Parameter(x.channels, "x_channels"),
    )
