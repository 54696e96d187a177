# SPDX-License-Identifier: Apache-2.0
"""Random small damages to sound models, in any field."""

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from anybit.ops import OPERATORS

_INTEGERS = [0, 1, 2, 3, 4, 7, 8, 10, 16, 21, 24, 31, 64, 1000, -1, -2, -5, 2**31 - 1, -(2**31)]
_LONG_INTEGERS = [2**20, 2**31, 2**40, 2**60, 2**62, 2**63 - 1, -(2**63)]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-45, 3e38, -3e38, 2.0**31, 1e6]
_FLOATS += [float("nan"), float("inf"), float("-inf")]
_WORDS = ["", "x", "y", "\0", "é", "a/b", "../x", "x" * 5000, "ROUND", "half_even", "s8", "N", "-1"]
_KINDS = [
    *("Quant", "Identity", "QuantizeLinear", "DequantizeLinear", "Clip", "Cast", "Constant"),
    *("ConstantOfShape", "Shape", "If", "Loop", "Scan", "Mul", "Div", "Reshape", "Concat", "Split"),
    *("Conv", "MatMul", "Resize", "Upsample", "BatchNormalization", "LSTM", "SequenceConstruct"),
    *("DynamicQuantizeLinear", "MultiThreshold", "Optional", "StringNormalizer", "Einsum", "None"),
]
_KINDS += [operator.onnx_name for operator in OPERATORS]
_DOMAINS = ["", "ai.onnx", "ai.onnx.ml", "com.microsoft", "onnx.brevitas", "anybit", "mine"]
_DOMAINS += ["qonnx.custom_op.general", "finn.custom_op.general"]
_ATTRIBUTES = ["axis", "to", "value", "value_int", "block_size", "output_dtype", "saturate"]
_ATTRIBUTES += [item.onnx_name for operator in OPERATORS for item in operator.attributes]
_SPECIAL = {"op_type": _KINDS, "domain": _DOMAINS, "name": _ATTRIBUTES}

_MOST_BYTES = 64


def mutated(proto: onnx.ModelProto, random: Random) -> list[str]:
    """Damage a model in place, and return a description of each damage."""
    return [_mutate(proto, random) for _ in range(random.choice([1, 1, 1, 2, 2, 3, 5]))]


def damaged(data: bytes, random: Random) -> bytes:
    """Return data with bytes cut off, overwritten, removed or doubled."""
    at = random.randrange(len(data) + 1)
    some = random.randrange(1, 9)
    match random.randrange(4):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + random.randbytes(some) + data[at + some :]
        case 2:
            return data[:at] + data[at + some :]
        case _:
            return data[:at] + data[at : at + some] + data[at:]


def _mutate(proto: onnx.ModelProto, random: Random) -> str:
    messages = list(_messages(proto))
    # Select the message type first: otherwise the many dimensions and names take all the damage.
    kinds = sorted({item.DESCRIPTOR.name for item in messages})
    kind = random.choice(kinds)
    message = random.choice([item for item in messages if item.DESCRIPTOR.name == kind])
    fields = list(message.DESCRIPTOR.fields)
    used = [field for field, _ in message.ListFields()]
    field = random.choice(used if used and random.random() < 0.8 else fields)
    others = [item for item in messages if item.DESCRIPTOR is message.DESCRIPTOR]
    if _is_repeated(field):
        change = _change_items(message, field, others, random)
    else:
        change = _change_value(message, field, others, random)
    return f"{kind}.{field.name}: {change}"


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if _is_repeated(field) else [value]:
                yield from _messages(item)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _change_items(
    message: Message, field: FieldDescriptor, others: list[Any], random: Random
) -> str:
    items = getattr(message, field.name)
    at = random.randrange(len(items)) if items else 0
    kind = random.choice(["delete", "double", "swap", "clear", "copy", "change", "change"])
    if kind == "delete" and items:
        del items[at]
    elif kind == "clear":
        del items[:]
    elif kind == "double" and items:
        _append(items, items[at])
    elif kind == "swap" and items:
        kept = list(items)
        random.shuffle(kept)
        copies = [_copied(item) for item in kept]
        del items[:]
        for copy in copies:
            _append(items, copy)
    elif kind == "copy":
        donors = [item for other in others for item in getattr(other, field.name)]
        for donor in random.choices(donors, k=min(len(donors), random.choice([1, 1, 2]))):
            _append(items, donor)
    elif field.type != FieldDescriptor.TYPE_MESSAGE:
        present_values = [item for other in others for item in getattr(other, field.name)]
        value = _value(field, present_values, items[at] if items else None, random)
        if items:
            items[at] = value
        else:
            items.append(value)
        return repr(value)[:80]
    return kind


def _copied(item: Any) -> Any:
    if not isinstance(item, Message):
        return item
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _append(items: Any, item: Any) -> None:
    if isinstance(item, Message):
        items.add().CopyFrom(_copied(item))
    else:
        items.append(item)


def _change_value(
    message: Message, field: FieldDescriptor, others: list[Any], random: Random
) -> str:
    if random.random() < 0.1:
        message.ClearField(field.name)
        return "cleared"
    donors = [getattr(other, field.name) for other in others if other.HasField(field.name)]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if not donors:
            getattr(message, field.name).SetInParent()
            return "empty"
        donor = _copied(random.choice(donors))
        getattr(message, field.name).CopyFrom(donor)
        return "from another"
    value = _value(field, donors, getattr(message, field.name), random)
    setattr(message, field.name, value)
    return repr(value)[:80]


def _value(field: FieldDescriptor, candidates: list[Any], present: Any, random: Random) -> Any:
    """Return a value of the same field elsewhere in the model, or an extreme value."""
    if candidates and random.random() < 0.4:
        return random.choice(candidates)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_ENUM:
            return random.choice(list(field.enum_type.values_by_number))
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            is_long = field.cpp_type == FieldDescriptor.CPPTYPE_INT64
            return random.choice([*_INTEGERS, *(_LONG_INTEGERS if is_long else [])])
        case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
            return abs(random.choice(_INTEGERS))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return damaged(present or bytes(_MOST_BYTES), random)
    return random.choice(_SPECIAL.get(field.name, _WORDS) if random.random() < 0.7 else _WORDS)
