# SPDX-License-Identifier: Apache-2.0
"""Which functions of activations the modules of a model call."""

import dis
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch

from anybit.torch.nn._function_calls import KINDS
from anybit.torch.nn._functions import QuantizedFunction, without_sign
from anybit.torch.nn._layers import fit
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._rewriting import Rewritten, rewrite
from anybit.torch.nn._tracing import Function, Traced, traced
from anybit.torch.nn._transformer import TRANSFORMERS
from anybit.torch.nn._words import quantizer
from anybit.words.meant import unknown

_OPERATIONS = {"+", "+=", "@", "@="}
_NAMES = {
    *("add", "add_", "cat", "concat", "concatenate", "matmul", "bmm"),
    "scaled_dot_product_attention",
}


@dataclass
class ModelFunctions:
    """What is found in a model.

    Attributes:
        traced: By the names of modules, their forward passes.
        untraced: By the names of modules that may call functions, why these are not known.
    """

    traced: dict[str, Traced] = field(default_factory=dict)
    untraced: dict[str, str] = field(default_factory=dict)

    def named(self) -> dict[str, Function]:
        """The functions by their names in the model."""
        return {
            joined(module, name): function
            for module, found in self.traced.items()
            for name, function in found.functions.items()
        }

    def attach(self, model: torch.nn.Module, quantizers: Mapping[str, Mapping[str, Any]]) -> None:
        """Give the functions these quantizers, by their names in the model; others stay float."""
        for name, found in self.traced.items():
            module = model.get_submodule(name)
            made = {
                each: _made(function, quantizers[joined(name, each)], module)
                for each, function in found.functions.items()
                if quantizers.get(joined(name, each))
            }
            if made and type(module) in TRANSFORMERS:
                for each, added in made.items():
                    module.add_module(each, added)
                module.__class__ = TRANSFORMERS[type(module)]
            elif made:
                rewrite(module, found, made)


def model_functions(model: torch.nn.Module) -> ModelFunctions:
    """The functions that the forward passes of users' modules call."""
    found = ModelFunctions()
    for name, module in model.named_modules():
        if type(module) in TRANSFORMERS:
            sums = dict.fromkeys(TRANSFORMERS[type(module)].sums, Function("add", unsigned=False))
            found.traced[name] = Traced((), functions=sums)
            continue
        if not _is_of_a_user(module) or not _mentions_functions(module):
            continue
        if isinstance(module, torch.fx.GraphModule):
            result: Traced | str = "it is a graph of torch.fx: give the module that was traced"
        else:
            result = traced(module)
        if isinstance(result, str):
            found.untraced[name] = f"{name or 'the model'} ({type(module).__name__}: {result})"
        elif result.functions:
            found.traced[name] = result
    return found


def words_by_kind(given: Any) -> dict[str, str]:
    """The words for each kind of function that a specification has under "functions"."""
    if isinstance(given, str):
        _check_words(given)
        return dict.fromkeys(KINDS, given)
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given.values()):
        raise ValueError(
            '"functions" must be words like "int8", or a mapping from kinds to words, '
            f"got {given!r}"
        )
    for kind, words in given.items():
        if kind not in KINDS:
            raise ValueError(f"functions: {unknown('kind', str(kind), list(KINDS))}")
        _check_words(words)
    return dict(given)


def _check_words(words: str) -> None:
    """ValueError for words that are not known, whether or not there is such a function."""
    try:
        _ = None if words == "none" else quantizer(words)
    except ValueError as error:
        raise ValueError(f"functions: {error}") from None


def check_function(function: Function, name: str, quantizers: Mapping[str, Quantizer]) -> None:
    """ValueError for quantizers that the function cannot have."""
    try:
        KINDS[function.kind](**quantizers)
    except ValueError as error:
        raise ValueError(f"function {name!r}: {error}") from None


def joined(module: str, name: str) -> str:
    """The name in the model of what has a name in the module."""
    return f"{module}.{name}".lstrip(".")


def _made(
    function: Function, quantizers: Mapping[str, Quantizer], module: torch.nn.Module
) -> QuantizedFunction:
    made = KINDS[function.kind](**quantizers)
    made.train(module.training)
    if function.unsigned and made.factors and made.input_quantizer is not None:
        without_sign(made.input_quantizer)
    weight = next((each for each in module.parameters() if each.is_floating_point()), None)
    if weight is not None:
        fit(made, module, weight)
    return made


def _is_of_a_user(module: torch.nn.Module) -> bool:
    kind = type(module)
    known = kind.__module__.startswith(("torch.nn.", "torch.ao.", "anybit."))
    # Compilers and wrappers call the module inside, which is looked at by itself.
    return not (known or isinstance(module, Rewritten | torch.jit.ScriptModule))


def _mentions_functions(module: torch.nn.Module) -> bool:
    """Whether forward, or a function that it names, has a word for such a function."""
    seen: set[CodeType] = set()
    waiting: list[Any] = [type(module).forward]
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", function)
        if not isinstance(code, CodeType) or code in seen:
            continue
        seen.add(code)
        for each in dis.get_instructions(code):
            builtin = each.opname == "LOAD_GLOBAL" and each.argval == "sum"
            if builtin or each.argrepr in _OPERATIONS or each.argval in _NAMES:
                return True
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        known = getattr(function, "__globals__", {})
        for name in code.co_names:
            # What a class overrides is called, too, by super().
            called = [known.get(name), *(vars(each).get(name) for each in type(module).__mro__)]
            waiting += [each for each in map(_plain, called) if each]
        waiting.append(getattr(function, "__wrapped__", None))
    return False


def _plain(called: Any) -> FunctionType | None:
    """The function that a user has written, if it is one."""
    called = getattr(called, "__func__", called)
    own = isinstance(called, FunctionType) and not called.__module__.startswith("torch.")
    return called if own else None
