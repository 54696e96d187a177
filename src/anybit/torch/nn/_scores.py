# SPDX-License-Identifier: Apache-2.0
"""What in a graph may be scores or a mask, and what softmax gave.

A mask holds values like the lowest float, next to which a scale leaves nothing of the scores. So
what may be one is none of the functions that get quantizers, and where in doubt it may be one.
"""

import inspect
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional
from torch.nn.parameter import is_lazy

_SOFTMAX: set[Any] = {
    *(functional.softmax, torch.softmax, torch.special.softmax, "softmax"),
    *(torch.nn.Softmax, torch.nn.Softmax2d),
}
# By these names other functions, methods and modules are something like softmax.
_LIKE_SOFTMAX = ("softmax", "softmin", "logsumexp", "cross_entropy", "crossentropy")
_EXP = {"exp", "exp_", "exp2"}
# Behind these there are no scores any more, unless the sum is added to what they give.
_ENDS = {
    *("matmul", "bmm", "mm", "mv", "einsum", "tensordot", "linear", "bilinear", "embedding"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"),
}
_ADDING = {"baddbmm", "addbmm", "addmm", "baddbmm_", "addbmm_", "addmm_"}
_MASKS = ("mask", "bias")
# What keeps all values of its first argument, or drops some.
_KEEPING: set[Any] = {
    *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "permute"),
    *("squeeze", "unsqueeze", "expand", "expand_as", "contiguous", "swapaxes", "movedim", "clone"),
    *("dropout", "getitem", "to", "float", "type", "type_as", "Identity", "Dropout"),
    *("Flatten", "Unflatten"),
}


def may_be_scores(node: Node, root: torch.nn.Module, numbers: set[Node]) -> bool:
    """Whether something like softmax reads the result of a sum, or reads it as a mask.

    Or whether the sum is one of a mask, by the name of an argument.
    """
    if any(_is_of_a_mask(each, numbers) for each in node.all_input_nodes):
        return True
    waiting, seen = [node], {node}
    while waiting:
        read = waiting.pop()
        for user in read.users:
            if _is_mask_of(read, user, root) or _is_like_softmax(user, root):
                return True
            if user not in seen and user not in numbers and not _is_end(read, user, root):
                seen.add(user)
                waiting.append(user)
    return False


def comes_from_softmax(node: Node, root: torch.nn.Module) -> bool:
    """Whether the first argument of a call is what softmax gives, and never negative."""
    first = next(iter(node.args or node.kwargs.values()), None)
    while isinstance(first, Node) and not _is_changed(first):
        if _what(first, root) in _SOFTMAX:
            return True
        if not (_name(first, root) in _KEEPING or _is_scaled(first)) or not first.args:
            return False
        first = first.args[0]
    return False


def _what(node: Node, root: torch.nn.Module) -> Any:
    """What a call calls: a function, the name of a method, or the type of a module."""
    if node.op == "call_module":
        return type(root.get_submodule(str(node.target)))
    return node.target if node.op in ("call_function", "call_method") else None


def _name(node: Node, root: torch.nn.Module) -> str:
    found = _what(node, root)
    return str(getattr(found, "__name__", found))


def _is_changed(node: Node) -> bool:
    """Whether a call may change something in place, or a view of it."""
    for user in node.users:
        name = str(getattr(user.target, "__name__", user.target))
        in_place = name.endswith("_") and not name.endswith("__")
        if in_place or name.startswith("__i") or name == "augmented" or "out" in user.kwargs:
            return True
        if name in _KEEPING and _is_changed(user):
            return True
    return False


def _is_scaled(node: Node) -> bool:
    """Whether a call multiplies by a positive number, or divides by it."""
    if getattr(node.target, "__name__", node.target) not in ("mul", "div", "truediv"):
        return False
    number = node.args[1] if len(node.args) == 2 and not node.kwargs else None
    return isinstance(number, int | float) and number > 0


def _is_of_a_mask(node: Node, numbers: set[Node]) -> bool:
    """Whether nothing but an argument called a mask makes this."""
    while node.op in ("call_function", "call_method"):
        read = [each for each in node.all_input_nodes if each not in numbers]
        if len(read) != 1:
            return False
        node = read[0]
    return node.op == "placeholder" and any(each in str(node.target).lower() for each in _MASKS)


def _is_mask_of(read: Node, user: Node, root: torch.nn.Module) -> bool:
    """Whether a call takes it as an argument that is called a mask."""
    given = dict(user.kwargs)
    if user.op == "call_module":
        given |= zip(_arguments(root.get_submodule(str(user.target))), user.args, strict=False)
    elif user.target is functional.scaled_dot_product_attention:
        given |= zip(["attn_mask"], user.args[3:4], strict=False)
    return any(
        each is read and any(part in name.lower() for part in _MASKS)
        for name, each in given.items()
    )


def _arguments(module: torch.nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # it is not written in Python
        return []


def _is_like_softmax(node: Node, root: torch.nn.Module) -> bool:
    name = _name(node, root).lower()
    if name in _EXP or any(each in name for each in _LIKE_SOFTMAX):
        return True
    if node.op != "call_module":
        return False
    module = root.get_submodule(str(node.target))
    if _has_weights(module):
        return False
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names = [*(type(each).__name__ for each in module.modules()), *(code.co_names if code else ())]
    return any("softmax" in each.lower() for each in names)


def _is_end(read: Node, user: Node, root: torch.nn.Module) -> bool:
    """Whether what a call gives is something else than what it reads."""
    if user.op == "call_module":
        return _has_weights(root.get_submodule(str(user.target)))
    name = _name(user, root)
    if name in _ADDING:
        return read not in user.args[:1]
    return name in _ENDS or name == "scaled_dot_product_attention"


def _has_weights(module: torch.nn.Module) -> bool:
    """Whether a module has more than factors and offsets."""
    return any(
        is_lazy(each) or each.ndim == 2 or each.numel() > max(each.shape, default=1)
        for each in module.parameters()
    )
