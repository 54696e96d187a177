# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much: memory, time, or an end that never comes.

A function of the number of nodes makes each. `BOMBS` are hostile; `CHAINS` are merely long.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

OURS = "qonnx.custom_op.general"
_HEAD = f'<ir_version: 8, opset_import: ["": 17, "{OURS}": 1, "mine": 1]>'
_QUANTIZER: dict[str, Any] = {"s": np.float32(0.5), "z": np.float32(0), "b": np.float32(4)}
_CODES: dict[str, Any] = {"s": np.float32(0.5), "n": np.int8(0)}
_WEIGHTS = _QUANTIZER | {"w": np.arange(-8, 8, dtype=np.float32).reshape(4, 4)}


def _repeat(count: int, lines: str) -> str:
    """Return lines for at = 0 ... count - 1, where {at} and {to} = at + 1 end names."""
    return "\n".join(lines.format(at=at, to=at + 1) for at in range(count))


def _model(
    body: str,
    output: str = "y",
    constants: Mapping[str, Any] | None = None,
    *,
    inputs: str = "",
    functions: str = "",
) -> onnx.ModelProto:
    """Parse a model, whose first v0 is x unless it is a constant."""
    constants = constants or {}
    body = body.replace("IntQuant", f"{OURS}.IntQuant")
    model = parser.parse_model(
        f"{_HEAD} g (float[1, 4] x{inputs}) => (float[1, 4] {output}) {{{body}}} {functions}"
    )
    for node in model.graph.node if "v0" not in constants else ():
        node.input[:] = ["x" if name == "v0" else name for name in node.input]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return model


def _model_of_length(body: str, vector: str, constants: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model whose result depends on the length of a vector."""
    length = f"""
        sizes = Shape({vector})
        floats = Cast<to = 1>(sizes)
        sum = ReduceSum<keepdims = 0>(floats)
        y = Mul(x, sum)"""
    return _model(body + length, "y", constants)


def shapes_of_shapes(count: int) -> onnx.ModelProto:
    """Make arrays that each give the rank of the next one."""
    body = _repeat(count, "v{to} = ConstantOfShape<value = int64[1] {{64}}>(v{at})")
    return _model_of_length(body, f"v{count}", {"v0": np.array([4])})


def expanded(count: int) -> onnx.ModelProto:
    """Make vectors of 2^27 elements, one after the other."""
    lines = "e{at} = Expand(one, many)\nc{at} = ConstantOfShape<value = int64[1] {{1}}>(e{at})"
    vectors = ", ".join(f"e{at}" for at in range(count))
    body = _repeat(count, lines) + f"\nall = Concat<axis = 0>({vectors})"
    return _model_of_length(body, "all", {"one": np.array([1]), "many": np.array([2**27])})


def doubled(count: int) -> onnx.ModelProto:
    """Make vectors that each repeat the one before twice."""
    body = _repeat(count, "v{to} = Concat<axis = 0>(v{at}, v{at})")
    return _model_of_length(body, f"v{count}", {"v0": np.array([1])})


def doubled_shapes(count: int) -> onnx.ModelProto:
    """Make the same with sizes of the input, which shape inference follows."""
    body = _repeat(count, "u{to} = Concat<axis = 0>(u{at}, u{at})")
    return _model_of_length(f"u0 = Shape(x)\n{body}", f"u{count}", {})


def gathered(count: int) -> onnx.ModelProto:
    """Gather a few elements millions of times."""
    zeros = "zeros = ConstantOfShape<value = int64[1] {0}>(many)\n"
    body = zeros + _repeat(count, "v{to} = Gather<axis = 0>(v{at}, zeros)")
    constants = {"v0": np.array([1]), "many": np.array([2**26])}
    return _model_of_length(body, f"v{count}", constants)


def endless(count: int) -> onnx.ModelProto:
    """Make loops over constants without an end."""
    lines = """v{to} = Loop<body = body (int64 i, bool go, float[1] p) => (bool on, float[1] r) {{
            on = Identity(go)
            r = Neg(p)
        }}>(, go_on, v{at})"""
    body = _repeat(count, lines) + f"\ny = Mul(x, v{count})"
    return _model(body, "y", {"go_on": np.array(True), "v0": np.ones(1, np.float32)})


def nested(count: int) -> onnx.ModelProto:
    """Nest branches in branches."""
    body = "b0 = Relu(x)"
    for at in range(1, count + 1):
        body = f"""b{at} = If(c) <
            then_branch = inner () => (float[1, 4] b{at - 1}) {{ {body} }},
            else_branch = other () => (float[1, 4] o{at}) {{ o{at} = Neg(x) }}>"""
    return _model(body, f"b{count}", inputs=", bool c")


def calls(count: int) -> onnx.ModelProto:
    """Define functions that each call the one before twice."""
    head = '<domain: "mine", opset_import: ["": 17, "mine": 1]>\n'
    twice = head + "f{to} (a) => (b) {{ t = mine.f{at}(a) b = mine.f{at}(t) }}"
    functions = head + "f0 (a) => (b) { b = Neg(a) }\n" + _repeat(count, twice)
    return _model(f"y = mine.f{count}(x)", functions=functions)


def standard(count: int) -> onnx.ModelProto:
    return _model(_repeat(count, "v{to} = Neg(v{at})"), f"v{count}")


def identities(count: int) -> onnx.ModelProto:
    return _model(_repeat(count, "v{to} = Identity(v{at})"), f"v{count}")


def constants(count: int) -> onnx.ModelProto:
    body = _repeat(count, "v{to} = Neg(v{at})") + f"\ny = Add(x, v{count})"
    return _model(body, "y", {"v0": np.ones((1, 4), np.float32)})


def quantizers(count: int) -> onnx.ModelProto:
    return _model(_repeat(count, "v{to} = IntQuant(v{at}, s, z, b)"), f"v{count}", _QUANTIZER)


def scaled(count: int) -> onnx.ModelProto:
    """Make quantizers with scales of their own."""
    scales = {f"s{at}": np.float32(0.5 + at) for at in range(count)}
    body = _repeat(count, "v{to} = IntQuant(v{at}, s{at}, z, b)")
    return _model(body, f"v{count}", _QUANTIZER | scales)


def native(count: int) -> onnx.ModelProto:
    lines = "q{at} = QuantizeLinear(v{at}, s, n)\nv{to} = DequantizeLinear(q{at}, s, n)"
    return _model(_repeat(count // 2, lines), f"v{count // 2}", _CODES)


def moved_codes(count: int, first: str = "QuantizeLinear(x, s, n)") -> onnx.ModelProto:
    """Make a quantizer whose codes are moved repeatedly, and read after every move."""
    lines = """
        q{to} = Transpose<perm = [0, 1]>(q{at})
        d{at} = DequantizeLinear(q{to}, s, n)
        v{to} = Add(v{at}, d{at})"""
    return _model(f"q0 = {first}" + _repeat(count // 3, lines), f"v{count // 3}", _CODES)


def foreign_codes(count: int) -> onnx.ModelProto:
    """Make the model of `moved_codes` with codes that no quantizer computes."""
    return moved_codes(count, "Cast<to = 3>(x)")


def weights(count: int) -> onnx.ModelProto:
    lines = """
        s{at} = Mul(s, s)
        q{at} = IntQuant(w{at}, s{at}, z, b)
        t{at} = Transpose(q{at})
        v{to} = MatMul(v{at}, t{at})"""
    matrices = {f"w{at}": np.eye(4, dtype=np.float32) + at for at in range(count // 4)}
    return _model(_repeat(count // 4, lines), f"v{count // 4}", _QUANTIZER | matrices)


def layers(count: int, scale: float = 0.5) -> onnx.ModelProto:
    """Make products of codes in a chain: fewer, because each takes some 10 ms."""
    lines = "q{at} = IntQuant(v{at}, s, z, b)\nv{to} = MatMul(q{at}, w)"
    constants = _WEIGHTS | {"s": np.float32(scale)}
    return _model(_repeat(count // 8, lines), f"v{count // 8}", constants)


def rounded(count: int) -> onnx.ModelProto:
    """Make the same with scales of full precision: float32 rounds every product."""
    return layers(count, 0.1)


def residuals(count: int) -> onnx.ModelProto:
    """Make products of codes that are added to their inputs."""
    lines = """
        q{at} = IntQuant(v{at}, s, z, b)
        p{at} = MatMul(q{at}, w)
        r{at} = IntQuant(p{at}, s, z, b)
        v{to} = Add(q{at}, r{at})"""
    return _model(_repeat(count // 12, lines), f"v{count // 12}", _WEIGHTS)


def watched(count: int) -> onnx.ModelProto:
    """Make products of codes whose sums a function without an integer form reads."""
    model = rounded(count)
    for at in range(1, count // 8):
        model.graph.node.append(onnx.helper.make_node("Softmax", [f"v{at}"], [f"m{at}"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info(f"m{at}", 1, (1, 4)))
    return model


def summed(count: int) -> onnx.ModelProto:
    """Make maxima of codes and their negatives, one of the other."""
    lines = "n{at} = Neg(u{at})\nu{to} = Max(u{at}, n{at})"
    head = "q0 = IntQuant(x, s, z, b)\nu0 = Relu(q0)\n"
    return _model(head + _repeat(count // 2, lines), f"u{count // 2}", _QUANTIZER)


def joined(count: int) -> onnx.ModelProto:
    """Make products of one tensor of codes, each by itself, and add them up at the end."""
    lines = """
        p{at} = MatMul(q0, w)
        q{to} = IntQuant(p{at}, s, z, b)
        u{to} = Add(u{at}, q{to})"""
    body = "q0 = IntQuant(x, s, z, b)" + _repeat(count // 12, lines).replace("u0", "q0")
    return _model(body, f"u{count // 12}", _WEIGHTS)


def multiplied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a chain followed by products with quantized weights: MatMul and Gemm."""
    (result,) = model.graph.output[:1]
    constants = {f"p{name}": value for name, value in _QUANTIZER.items()}
    products = _model(
        f"""wq = IntQuant(weights, ps, pz, pb)
        product = MatMul({result.name}, wq)
        products = Gemm(product, wq)""",
        "products",
        constants | {"weights": np.eye(4, dtype=np.float32)},
    )
    model.graph.node.extend(products.graph.node)
    model.graph.initializer.extend(products.graph.initializer)
    result.name = "products"
    return model


BOMBS: dict[str, tuple[Callable[[int], onnx.ModelProto], int]] = {
    "shapes of shapes": (shapes_of_shapes, 6),
    "expanded": (expanded, 10),
    "doubled": (doubled, 50),
    "doubled shapes": (doubled_shapes, 50),
    "gathered": (gathered, 4),
    "endless": (endless, 5),
    "nested": (nested, 25),
    "calls": (calls, 20),
}
CHAINS: dict[str, Callable[[int], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        *(standard, identities, constants, quantizers, scaled, native),
        *(moved_codes, foreign_codes, weights),
        *(layers, rounded, residuals, watched, summed, joined),
    )
}
