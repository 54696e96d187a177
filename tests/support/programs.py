# SPDX-License-Identifier: Apache-2.0
"""Random programs of integer regions, and inputs that lie on their thresholds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st

from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import pack_indices
from anybit.compiler.program.reference import split_words

T = TypeVar("T")
INSTRUCTION_SETS = (
    *("baseline", "dotprod"),
    *("avx2", "avxvnni", "avx512", "avx512vnni", "avx512vpopcnt", "amx"),
)
SIZES = (1, 1, 2, 3, 5, 8)
CHANNELS = (1, 2, 3, 8, 31, 32, 33, 64, 70)
LEVELS = (2, 2, 2, 3, 4, 4, 7, 16, 200, 256)
MOST_ENTRIES = 4000


def change_record(program: p.Program, kind: str, place: int, **fields: Any) -> p.Program:
    """Return a program with other fields of one of its instructions, tensors, floats or ports."""
    records = list(getattr(program, kind))
    records[place] = replace(records[place], **fields)
    return replace(program, **{kind: tuple(records)})


class Choices(Protocol):
    """Source of decisions: Hypothesis, or a generator of random numbers."""

    def integer(self, lowest: int, highest: int) -> int: ...


class FromGenerator:
    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def integer(self, lowest: int, highest: int) -> int:
        return int(self._generator.integers(lowest, highest, endpoint=True))


class _Drawn:
    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw

    def integer(self, lowest: int, highest: int) -> int:
        return int(self._draw(st.integers(lowest, highest)))


@st.composite
def programs(draw: Callable[..., Any]) -> p.Program:
    """Whole programs: every instruction, epilogue and coding, small and odd sizes."""
    return make_program(_Drawn(draw))


def make_program(choices: Choices) -> p.Program:
    return _Maker(choices).program()


def make_integer_program(choices: Choices, *, codes: bool = False) -> p.Program:
    """Return a program that has C code, with codes for all outputs on request."""
    return _IntegerMaker(choices, codes).program()


def inputs_for(program: p.Program, rows: int, seed: int) -> list[np.ndarray]:
    """Return inputs on the thresholds, next to them and far away."""
    rng = np.random.default_rng(seed)
    inputs = []
    for number, port in enumerate(program.inputs):
        near = [np.float32([-np.inf, np.inf, 0, -0.0, 1e30])]
        keeps_nan = True
        for instruction in program.instructions:
            if isinstance(instruction, p.Quantize) and instruction.source == number:
                starts = instruction.thresholds
                with np.errstate(all="ignore"):
                    if instruction.offsets.size:
                        starts = np.subtract.outer(starts, instruction.offsets).ravel()
                    if instruction.factors.size:
                        starts = np.divide.outer(starts, instruction.factors).ravel()
                starts = starts[~np.isnan(starts)]
                near += [starts, np.nextafter(starts, np.float32(-np.inf))]
                keeps_nan &= instruction.nan >= 0
        if keeps_nan:
            near.append(np.float32([np.nan]))
        shape = rows, *port.sizes.tolist()
        x = rng.choice(np.concatenate(near), shape)
        noise = rng.normal(0, 2, shape)
        inputs.append(np.where(rng.random(shape) < 0.5, noise, x).astype(np.float32))
    return inputs


class _Maker:
    codings: tuple[tuple[int, int], ...] = ((0, 1), (-1, 2), (-1, 1), (3, 5))
    excluded: tuple[str, ...] = ()
    operations = tuple(p.Operation)

    def __init__(self, choices: Choices) -> None:
        self._integer = choices.integer
        self._rng = np.random.default_rng(choices.integer(0, 2**31))
        self._inputs: list[p.Port] = []
        self._targets: list[p.Port | p.FloatTensor] = []
        self._tensors: list[p.Tensor] = []
        self._instructions: list[p.Instruction] = []

    def program(self) -> p.Program:
        for _ in range(self._integer(1, 2)):
            self._quantize()
        kinds = (
            *(self._product, self._product, self._product, self._maxpool, self._lookup),
            *(self._combine, self._add, self._multiply, self._gather, self._reshape, self._concat),
            *(self._requantize, self._elementwise, self._dynamic, self._matmul, self._float_rows),
            *(self._mean, self._blocks),
        )
        kinds = tuple(kind for kind in kinds if kind.__name__ not in self.excluded)
        for _ in range(self._integer(0, 6)):
            self._one_of(kinds)()
        self._one_of((self._dequantize, self._result))(len(self._tensors) - 1)
        for _ in range(self._integer(0, 1)):
            self._one_of((self._dequantize, self._result))(self._source())
        if not any(isinstance(target, p.Port) for target in self._targets):
            self._elementwise(output=True)
        return self._ordered()

    def _ordered(self) -> p.Program:
        """Return the program with the tensors of floats before the outputs."""
        floats = [x for x in self._targets if isinstance(x, p.FloatTensor)]
        outputs = [x for x in self._targets if isinstance(x, p.Port)]
        numbers = {x: number for number, x in enumerate((*floats, *outputs))}
        inputs = len(self._inputs)

        def source(number: int) -> int:
            return number if number < inputs else inputs + target(number - inputs)

        def target(number: int) -> int:
            return numbers[self._targets[number]]

        def ordered(at: p.Instruction) -> p.Instruction:
            match at:
                case p.Quantize():
                    return replace(at, source=source(at.source))
                case p.Product(epilogue=p.Arithmetic()) | p.MatMul(epilogue=p.Arithmetic()):
                    return replace(at, target=target(at.target))
                case p.Dequantize():
                    return replace(at, target=target(at.target))
                case p.Softmax() | p.LayerNorm() | p.SpatialMean():
                    return replace(at, source=source(at.source), target=target(at.target))
                case p.Elementwise():
                    reads = {"first": source(at.first), "second": source(at.second)}
                    return replace(at, target=target(at.target), **reads)
                case p.BlockProduct() | p.AsymmetricBlockProduct():
                    zero = source(at.zero) if at.zero >= 0 else at.zero
                    return replace(at, zero=zero, target=target(at.target))
                case p.DynamicScale():
                    return replace(at, source=source(at.source), target=target(at.target))
                case p.DynamicZero():
                    reads = {"source": source(at.source), "scale": source(at.scale)}
                    return replace(at, target=target(at.target), **reads)
                case p.DynamicQuantize():
                    zero = source(at.zero) if at.zero >= 0 else at.zero
                    return replace(at, source=source(at.source), scale=source(at.scale), zero=zero)
            return at

        return p.Program(
            *(tuple(items) for items in (self._inputs, outputs, self._tensors)),
            tuple(map(ordered, self._instructions)),
            tuple(floats),
        )

    def _float_target(self, height: int, width: int, channels: int, output: bool = False) -> int:
        sizes = height, width, channels
        inner = not output and self._integer(0, 1)
        port = self._port(p.Tensor(*sizes, 0, 1, 2))
        self._targets.append(p.FloatTensor(*sizes) if inner else port)
        return len(self._targets) - 1

    def _elementwise(self, output: bool = False) -> None:
        """Combine floats with none, themselves, or others that are repeated where they are one."""
        floats = [*self._inputs, *self._targets]
        first = self._integer(0, len(floats) - 1)
        h, w, c = (floats[first].height, floats[first].width, floats[first].channels)
        fitting = [
            number
            for number, x in enumerate(floats)
            if (x.height, x.width) in ((h, w), (1, 1)) and x.channels in (1, c)
        ]
        second = self._one_of((-1, *fitting, *fitting[-2:]))
        operation = self._integer(0, p.Operation.MINIMUM)
        steps = self._arithmetic(c).steps
        target = self._float_target(h, w, c, output)
        self._instructions.append(p.Elementwise(first, second, target, operation, steps))

    def _dynamic(self) -> None:
        """Codes of floats with a scale that is computed, or of any number, for pixels or rows."""
        floats = [*self._inputs, *self._targets]
        source = self._integer(0, len(floats) - 1)
        x, inputs = floats[source], len(self._inputs)
        sizes = (x.height, x.width) if self._integer(0, 1) else (1, 1)
        levels = self._one_of((3, 4, 16, 256))
        asymmetric = self._integer(0, 1)
        lowest = 0 if asymmetric and self._integer(0, 1) else -((levels - 1) // 2)
        scale = self._float_target(*sizes, 1)
        numbers = (np.float32([number]) for number in (levels - 1, 1e-35, 1e36))
        self._instructions.append(p.DynamicScale(source, scale, asymmetric, *numbers))
        # Other numbers are scales and zero-points, too.
        fitting = [
            inputs + number
            for number, target in enumerate(self._targets)
            if (target.height, target.width, target.channels) == (*sizes, 1)
        ]
        read, zero, channels = self._one_of((inputs + scale, *fitting)), -1, x.channels
        if asymmetric:
            zero = self._float_target(*sizes, 1)
            highest = lowest + levels - 1
            self._instructions.append(p.DynamicZero(source, read, zero, lowest, highest))
            zero = self._one_of((inputs + zero, *fitting))
            channels += self._one_of((0, 1, 5, 600))
        self._tensors.append(p.Tensor(x.height, x.width, channels, lowest, 1, levels))
        target = len(self._tensors) - 1
        order = np.zeros(0, np.int32)
        if self._integer(0, 1):
            first = np.arange(self._integer(0, x.channels))
            others = [self._integer(-1, x.channels - 1) for _ in range(min(channels, 8))]
            order = np.resize(np.concatenate([first, others]), channels).astype(np.int32)
        quantize = p.DynamicQuantize(source, read, zero, target, self._integer(0, 1), order)
        self._instructions.append(quantize)

    def _float_rows(self) -> None:
        """Normalize floats whose channels are contiguous."""
        floats = [*self._inputs, *self._targets]
        fitting = [
            number
            for number, x in enumerate(floats)
            if isinstance(x, p.FloatTensor) or not x.channels_first or x.height * x.width == 1
        ]
        if not fitting:
            return
        source = self._one_of(tuple(fitting))
        x = floats[source]
        self._targets.append(p.FloatTensor(x.height, x.width, x.channels))
        target = len(self._targets) - 1
        if self._integer(0, 1):
            self._instructions.append(p.Softmax(source, target))
            return
        gains, offsets = self._rng.normal(0, 1, (2, x.channels)).astype(np.float32)
        epsilon = np.float32([self._one_of((1e-5, 0.5))])
        self._instructions.append(p.LayerNorm(source, target, gains, offsets, epsilon))

    def _mean(self) -> None:
        """Average the pixels of floats."""
        floats = [*self._inputs, *self._targets]
        source = self._integer(0, len(floats) - 1)
        target = self._float_target(1, 1, floats[source].channels)
        self._instructions.append(p.SpatialMean(source, target))

    def _blocks(self) -> None:
        """Multiply codes in steps of 1 with weights that have a scale per block."""
        source = self._source()
        x, inputs = self._tensors[source], len(self._inputs)
        if x.step != 1:
            return
        bits, channels = self._integer(1, 8), self._one_of((1, 16, 17, 65))
        block, lowest = self._one_of((1, 16, 32, 33)), self._one_of((0, -(2 ** (bits - 1)), -255))
        zeros = [
            inputs + number
            for number, floats in enumerate(self._targets)
            if (floats.height, floats.width) in ((x.height, x.width), (1, 1))
            and floats.channels == 1
        ]
        zero = self._one_of((-1, *zeros))
        indices = self._rng.integers(0, 2**bits, channels * x.channels).astype(np.uint8)
        scales = self._rng.normal(0, 1, channels * -(-x.channels // block)).astype(np.float32)
        target = self._float_target(x.height, x.width, channels)
        weights = pack_indices(indices, bits)
        if self._integer(0, 1):
            sizes = source, zero, target, block, lowest, bits
            self._instructions.append(p.BlockProduct(*sizes, weights, scales))
            return
        zeros = self._rng.integers(0, 2**bits, scales.size).astype(np.uint8)
        packed = weights, pack_indices(zeros, bits)
        self._instructions.append(
            p.AsymmetricBlockProduct(source, zero, target, block, bits, *packed, scales)
        )

    def _matmul(self) -> None:
        """Multiply views of two tensors whose codes fit 16 bits."""
        first, second = self._source(), self._source()
        operands = self._tensors[first], self._tensors[second]
        highest = [x.lowest + x.step * (x.levels - 1) for x in operands]
        largest = [max(abs(x.lowest), abs(high)) for x, high in zip(operands, highest, strict=True)]
        if max(largest) > 2**15 - 1:
            return
        most = (2**30 - 1) // max(1, largest[0] * largest[1])
        elements = [x.height * x.width * x.channels for x in operands]
        groups, rows, columns = (self._one_of((1, 2, 3, 17, 70)) for _ in range(3))
        depth = min(self._one_of((1, 2, 5, 64, 301)), most, *elements)
        if not depth:
            return
        views = [
            self._view(count, (groups, lines, depth))
            for count, lines in zip(elements, (rows, columns), strict=True)
        ]
        merges = self._integer(0, 1)
        sizes = (1, rows, groups * columns) if merges else (groups, rows, columns)
        reach = depth * largest[0] * largest[1]
        epilogue: p.Epilogue
        if self._integer(0, 1):
            target = self._float_target(*sizes)
            epilogue = self._arithmetic(sizes[-1])
        else:
            target = self._tensor(*sizes)
            epilogue = self._epilogue(sizes[-1], self._tensors[target].levels, reach)
        self._instructions.append(
            p.MatMul(first, second, target, groups, rows, columns, depth, *views, merges, epilogue)
        )

    def _view(self, elements: int, sizes: tuple[int, ...]) -> np.ndarray:
        """Return a view that stays within the elements."""
        left, strides = elements - 1, []
        for size in sizes[::-1]:
            most = left // (size - 1) if size > 1 else elements
            strides.append(min(self._one_of((0, 1, 1, 2, 7, 64)), most))
            left -= strides[-1] * (size - 1)
        return np.array([self._integer(0, left), *strides[::-1]], np.int32)

    def _one_of(self, options: tuple[T, ...]) -> T:
        return options[self._integer(0, len(options) - 1)]

    def _source(self) -> int:
        return len(self._tensors) - 1 - self._integer(0, min(2, len(self._tensors) - 1))

    def _tensor(self, height: int, width: int, channels: int, levels: int = 0) -> int:
        levels = levels or self._one_of(LEVELS)
        lowest, step = self._one_of((*self.codings, (-levels // 2, 1)))
        self._tensors.append(p.Tensor(height, width, channels, lowest, step, levels))
        return len(self._tensors) - 1

    def _like(self, tensor: p.Tensor, height: int, width: int, channels: int) -> int:
        codes = tensor.lowest, tensor.step, tensor.levels
        self._tensors.append(p.Tensor(height, width, channels, *codes))
        return len(self._tensors) - 1

    def _port(self, tensor: p.Tensor) -> p.Port:
        h, w, c = tensor.height, tensor.width, tensor.channels
        first = self._integer(0, 1)
        sizes = (h * w * c,) if self._integer(0, 1) else ((c, h, w) if first else (h, w, c))
        return p.Port(np.int32(sizes), h, w, c, first)

    def _quantize(self) -> None:
        h, w, c = self._one_of(SIZES), self._one_of(SIZES), self._one_of(CHANNELS)
        target = self._tensor(h, w, c)
        self._inputs.append(self._port(self._tensors[target]))
        self._read(len(self._inputs) - 1, target, self._one_of((-1, 0, 1)))

    def _requantize(self) -> None:
        """Codes of floats that the program gives; NaN may come up among these."""
        self._one_of((self._dequantize, self._result))(self._source())
        port = self._targets[-1]
        target = self._tensor(port.height, port.width, port.channels)
        self._read(len(self._inputs) + len(self._targets) - 1, target, self._integer(0, 1))

    def _read(self, port: int, target: int, nan: int) -> None:
        """Quantize a port; NaN is refused (-1) or has the first (0) or the last index (1)."""
        c = self._tensors[target].channels
        tensor = self._tensors[target]
        length = tensor.levels - 1
        lists = self._one_of((1, 1, c))
        factors = offsets = np.zeros(0, np.float32)
        if lists == 1 and self._integer(0, 2) == 0:
            factors = self._rng.choice(np.float32([0.3, -0.5, 1, 7, 1e-30]), c)
        if lists == 1 and self._integer(0, 2) == 0:
            offsets = self._rng.choice(np.float32([0.3, -0.5, 0, 7]), c)
        directions = self._rng.choice([-1, 1], self._one_of((1, lists))).astype(np.int32)
        first = np.float32(self._integer(-8, 8)) / 4
        match self._integer(0, 2):
            case 0:  # a uniform quantizer
                scale = np.float32(self._one_of((0.25, 0.1, 1 / 3)))
                thresholds = np.tile((np.arange(length) + 0.5) * scale + first, (lists, 1))
            case 1:
                thresholds = self._rng.normal(0, 2, (lists, length))
            case _:
                thresholds = self._rng.choice([-np.inf, np.inf, -1, 0, 0.5, 3], (lists, length))
        thresholds = np.sort(thresholds.astype(np.float32)).ravel()
        self._instructions.append(
            p.Quantize(
                *(port, target, directions, thresholds, length if nan > 0 else nan),
                *(factors, offsets),
            )
        )

    def _window(self, tensor: p.Tensor, pads: bool) -> tuple[p.Window, int, int]:
        axes = [self._axis(size, pads) for size in (tensor.height, tensor.width)]
        (kh, sh, dh, top, bottom, h), (kw, sw, dw, left, right, w) = axes
        return p.Window(kh, kw, sh, sw, dh, dw, top, left, bottom, right), h, w

    def _axis(self, size: int, pads: bool) -> tuple[int, ...]:
        kernel, dilation = self._integer(1, min(size, 3)), 1
        if kernel > 1 and (kernel - 1) * 2 + 1 <= size:
            dilation = self._integer(1, 2)
        stride = self._integer(1, 2)
        most = 2 if pads else kernel - 1 if dilation == 1 else 0
        before, after = self._integer(0, most), self._integer(0, most)
        windows = (size + before + after - (kernel - 1) * dilation - 1) // stride + 1
        return kernel, stride, dilation, before, after, windows

    def _weights(self, count: int) -> tuple[int, np.ndarray, np.ndarray]:
        bits = self._integer(1, 8)
        values = self._one_of(
            (
                np.sort(self._rng.integers(-128, 128, self._integer(1, 2**bits))),
                np.array([-1, 1]),
                np.array([-1, 0, 1][: 2**bits]),
                np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)),
            )
        ).astype(np.int32)
        indices = self._rng.integers(0, len(values), count).astype(np.uint8)
        flags = (indices[:, None] >> np.arange(bits)) & 1
        return bits, np.packbits(flags.ravel(), bitorder="little"), values

    def _product(self, result: bool = False, source: int = -1) -> None:
        source = self._source() if source < 0 else source
        tensor = self._tensors[source]
        window, h, w = self._window(tensor, True)
        channels = tensor.channels
        groups = self._one_of(tuple({1, channels, 2 if channels % 2 == 0 else 1}))
        outer = groups * self._one_of((1, 2, 3) if groups > 1 else CHANNELS)
        size = window.kernel_height * window.kernel_width * (channels // groups)
        bits, weights, values = self._weights(outer * size)
        largest = abs(tensor.lowest) + tensor.step * (tensor.levels - 1)
        reach = size * int(np.abs(values).max()) * largest
        if result:
            target = self._float_target(h, w, outer)
            epilogue: p.Epilogue = self._arithmetic(outer)
        else:
            target = self._tensor(h, w, outer)
            epilogue = self._epilogue(outer, self._tensors[target].levels, reach)
        self._instructions.append(
            p.Product(source, target, window, groups, bits, weights, values, epilogue)
        )

    def _epilogue(self, channels: int, levels: int, reach: int) -> p.Epilogue:
        kind = self._integer(0, 5)
        if kind == 4:
            return self._scaled(channels, levels, reach)
        if kind == 5:
            pieces = self._one_of((1, 3, 40, p.MOST_PIECES))
            starts = self._rng.normal(0, reach / 4 + 1, (channels, pieces - 1)).round()
            turn = self._rng.integers(0, pieces, (channels, 1))
            entries = np.minimum(np.abs(np.arange(pieces) - turn), levels - 1)
            if self._integer(0, 1):
                entries = self._rng.integers(0, levels, entries.shape)
            sorted_starts = np.sort(starts.astype(np.int32))
            return p.Piecewise(sorted_starts.ravel(), entries.astype(np.uint8).ravel())
        if kind == 0 and 2 * reach + 1 <= MOST_ENTRIES:
            first = self._rng.integers(-reach - 3, -reach + 1, channels).astype(np.int32)
            shape = channels, 2 * reach + 4
            return p.Table(first, self._rng.integers(0, levels, shape).astype(np.uint8).ravel())
        if kind == 1:
            gains = self._rng.normal(0, levels / (reach + 1) * 3, channels)
            offsets = self._rng.normal(levels / 2, levels / 4, channels)
            shift = self._integer(-levels, levels)
            offsets -= shift
            return p.Affine(gains.astype(np.float32), offsets.astype(np.float32), shift)
        if kind == 2:
            replay = self._arithmetic(channels)
            scales = (replay.scales * levels / (reach + 1)).astype(np.float32)
            return p.Rounded(scales, replay.steps, self._integer(-levels, levels))
        shape = channels, levels - 1
        thresholds = self._rng.normal(0, reach / 4 + 1, shape).round()
        thresholds[self._rng.random(shape) < 0.05] = 2**31 - 1
        thresholds[self._rng.random(shape) < 0.05] = -(2**31)
        clipped = np.clip(thresholds, -(2**31), 2**31 - 1).astype(np.int32)
        directions = self._rng.choice([-1, 1], channels).astype(np.int32)
        return p.Thresholds(directions, np.sort(clipped).ravel())

    def _scaled(self, channels: int, levels: int, reach: int) -> p.Scaled:
        shifts = self._rng.integers(0, self._one_of((16, p.MOST_RIGHT_SHIFT + 1)), channels)
        slopes = self._rng.normal(0, levels / (reach + 1) * 3, channels)
        multipliers = np.clip(np.ldexp(slopes, shifts), -(2**31), 2**31 - 1).astype(np.int64)
        indices = self._rng.normal(levels / 2, levels / 4, channels)
        terms = np.ldexp(indices, shifts).astype(np.int64)
        late = self._rng.integers(0, 256, -(-channels * levels // 8) * self._integer(0, 1))
        return p.Scaled(
            *(multipliers.astype(np.int32), split_words(terms)),
            *(shifts.astype(np.uint8), late.astype(np.uint8)),
        )

    def _arithmetic(self, channels: int) -> p.Arithmetic:
        operands = (0.5, -3, 0.1, 7, np.inf, -0.0, 0, np.nan)
        steps = tuple(
            p.Step(
                self._one_of(self.operations),
                self._rng.choice(operands, self._one_of((1, channels))).astype(np.float32),
            )
            for _ in range(self._integer(0, 3))
        )
        return p.Arithmetic(self._rng.normal(0, 1, channels).astype(np.float32), steps)

    def _result(self, source: int) -> None:
        self._product(True, source)

    def _maxpool(self) -> None:
        source = self._source()
        tensor = self._tensors[source]
        window, h, w = self._window(tensor, False)
        target = self._like(tensor, h, w, tensor.channels)
        self._instructions.append(p.MaxPool(source, target, window))

    def _lookup(self) -> None:
        source = self._source()
        tensor = self._tensors[source]
        target = self._tensor(tensor.height, tensor.width, tensor.channels)
        size = tensor.levels * self._one_of((1, tensor.channels))
        entries = self._rng.integers(0, self._tensors[target].levels, size).astype(np.uint8)
        self._instructions.append(p.Lookup(source, target, entries))

    def _pair(self) -> tuple[int, int, int]:
        """Return two sources and a target; one source may have a single channel."""
        first = self._source()
        tensor = self._tensors[first]
        h, w, c = tensor.height, tensor.width, tensor.channels
        fitting = [
            number
            for number, other in enumerate(self._tensors)
            if (other.height, other.width) == (h, w) and other.channels in (1, c)
        ]
        second = self._one_of(tuple(fitting))
        if self._integer(0, 1):
            first, second = second, first
        return first, second, self._tensor(h, w, c)

    def _add(self) -> None:
        self._pair_arithmetic(p.Add, 1)

    def _multiply(self) -> None:
        self._pair_arithmetic(p.Multiply, self._one_of((1, 100, 10000)))

    def _pair_arithmetic(self, kind: type[p.Add | p.Multiply], smaller: int) -> None:
        pair = self._pair()
        levels = self._tensors[pair[2]].levels
        zeros = self._rng.integers(-3, 200, 2).astype(np.int32)
        gains = self._rng.normal(size=2).astype(np.float32)
        gains[0] /= smaller
        offset = self._rng.normal(size=1).astype(np.float32) * levels
        divisor = np.float32([self._one_of((1, 1, 0.5, 0.3))])
        shift = self._one_of((0, levels // 2, -3, 2**20, -(2**20)))
        lowest = self._integer(0, levels - 1)
        highest = self._integer(lowest, levels - 1)
        self._instructions.append(
            kind(*pair, zeros, gains, offset - shift, divisor, shift, lowest, highest)
        )

    def _combine(self) -> None:
        first, second, target = self._pair()
        c = self._tensors[target].channels
        levels = self._tensors[first].levels * self._tensors[second].levels
        size = levels * (c if levels * c <= MOST_ENTRIES and self._integer(0, 1) else 1)
        entries = self._rng.integers(0, self._tensors[target].levels, size).astype(np.uint8)
        self._instructions.append(p.Combine(first, second, target, entries))

    def _indices(self, size: int, count: int, missing: bool) -> np.ndarray:
        return self._rng.integers(-1 if missing else 0, size, count).astype(np.int32)

    def _gather(self) -> None:
        source = self._source()
        tensor = self._tensors[source]
        h, w, c = self._one_of(SIZES), self._one_of(SIZES), self._one_of(CHANNELS)
        missing = self._integer(0, 1) == 1
        channels = self._indices(tensor.channels, c, missing)
        if self._integer(0, 1):
            c = tensor.channels
            channels = np.arange(c, dtype=np.int32)
        target = self._like(tensor, h, w, c)
        rows = self._indices(tensor.height, h, missing)
        columns = self._indices(tensor.width, w, missing)
        fill = self._integer(0, tensor.levels - 1)
        self._instructions.append(p.Gather(source, target, rows, columns, channels, 0, fill))

    def _concat(self) -> None:
        """Concatenate a tensor with itself and with one of the same grid."""
        source = self._source()
        tensor = self._tensors[source]
        fitting = [
            number
            for number, other in enumerate(self._tensors)
            if (other.height, other.width, other.lowest, other.step, other.levels)
            == (tensor.height, tensor.width, tensor.lowest, tensor.step, tensor.levels)
        ]
        parts = [source, self._one_of(tuple(fitting))]
        target = self._like(
            tensor, tensor.height, tensor.width, sum(self._tensors[part].channels for part in parts)
        )
        first = 0
        for part in parts:
            other = self._tensors[part]
            ranges = (np.arange(size, dtype=np.int32) for size in (other.height, other.width))
            channels = np.arange(other.channels, dtype=np.int32)
            self._instructions.append(p.Gather(part, target, *ranges, channels, first, 0))
            first += other.channels

    def _reshape(self) -> None:
        source = self._source()
        tensor = self._tensors[source]
        h, w, c = tensor.height, tensor.width, tensor.channels
        sizes = self._one_of(((1, 1, h * w * c), (w, h, c), (h * w, 1, c), (c, w, h), (h, w, c)))
        target = self._like(tensor, *sizes)
        orders = self._integer(0, 1), self._integer(0, 1)
        self._instructions.append(p.Reshape(source, target, *orders))

    def _dequantize(self, source: int) -> None:
        tensor = self._tensors[source]
        target = self._float_target(tensor.height, tensor.width, tensor.channels)
        size = tensor.levels * self._one_of((1, tensor.channels))
        values = self._rng.normal(0, 1, size).astype(np.float32)
        self._instructions.append(p.Dequantize(source, target, values))


class _IntegerMaker(_Maker):
    codings = (*_Maker.codings, (-100, 1), (-100, 1), (-300, 2), (100, 1), (-32768, 257))
    excluded = (
        "_requantize",
        "_elementwise",
        "_dynamic",
        "_matmul",
        "_float_rows",
        "_mean",
        "_blocks",
    )
    operations = tuple(step for step in p.Operation if step < p.Operation.SIGMOID)

    def __init__(self, choices: Choices, codes: bool) -> None:
        super().__init__(choices)
        self._codes = codes

    def _float_target(self, height: int, width: int, channels: int, output: bool = False) -> int:
        return super()._float_target(height, width, channels, True)

    def _result(self, source: int) -> None:
        (super()._result if not self._codes else self._dequantize)(source)
