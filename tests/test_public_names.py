# SPDX-License-Identifier: Apache-2.0
"""What each public package offers, by name; what that costs to import; that it is documented."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

OPERATORS = [
    *("bipolar_quant", "dynamic_dequantize", "dynamic_quantize"),
    *("float_quant", "int_quant", "trunc", "trunc_v1"),
]
PUBLIC = {
    "anybit": [
        "Cleaned",
        "Compiled",
        "Conversion",
        "Difference",
        "Evaluated",
        "Evaluation",
        "Finding",
        "Model",
        "ModelError",
        "ModelReport",
        "Quantized",
        "RoundingMode",
        "check",
        "clean",
        "compile",
        "convert",
        "diff",
        "evaluate",
        "formats",
        "inspect",
        "load",
        "num_threads",
        "quantize",
        "save",
        "set_num_threads",
        *OPERATORS,
    ],
    "anybit.comparison": [
        "Difference",
        "ElementDifference",
        "Match",
        "NodeInput",
        "Outcome",
        "RUNNERS",
        "TensorDifference",
        "diff",
        "page",
    ],
    "anybit.formats": [
        "FloatFormat",
        "bfloat16",
        "float16",
        "float4_e2m1fn",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float8_e4m3fn",
        "float8_e5m2",
    ],
    "anybit.jax": OPERATORS,
    "anybit.onnx": [
        "Source",
        "exact_session_options",
        "prepare",
        "read",
        "reference_ops",
        "register",
        "save",
        "serialize",
    ],
    "anybit.onnxruntime": ["library_path", "register", "session"],
    "anybit.torch": [
        "Exported",
        "calibrate",
        "export",
        "export_options",
        "fold_batchnorm",
        "nn",
        "quantize_model",
        *OPERATORS,
    ],
    "anybit.torch.nn": [
        "BipolarQuantizer",
        "FloatQuantizer",
        "IntQuantizer",
        "QuantAdd",
        "QuantConcat",
        "QuantConv1d",
        "QuantConv2d",
        "QuantConvTranspose2d",
        "QuantEmbedding",
        "QuantGRU",
        "QuantLSTM",
        "QuantLinear",
        "QuantMatMul",
        "QuantMultiheadAttention",
        "QuantRNN",
        "QuantScaledDotProductAttention",
        "QuantizedFunction",
        "QuantizedLayer",
        "QuantizedRecurrent",
        "Quantizer",
        "Trunc",
        "calibrate",
        "describe",
        "fold_batchnorm",
        "freeze_scales",
        "quantize_model",
        "quantizer",
        "unfreeze_scales",
    ],
}


def package(name: str) -> object:
    for framework in ("torch", "jax"):
        if f".{framework}" in name:
            pytest.importorskip(framework)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_names_are_pinned(name: str) -> None:
    module = package(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name])
    for each in PUBLIC[name]:
        assert getattr(module, each) is not None
    assert set(PUBLIC[name]) <= set(dir(module))


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_offered_says_what_it_is(name: str) -> None:
    module = package(name)
    assert inspect.getdoc(module)
    for each in PUBLIC[name]:
        offered = getattr(module, each)
        if inspect.isclass(offered) or inspect.isfunction(offered):
            assert inspect.getdoc(offered), f"{name}.{each}"


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_offered_is_in_the_page_of_names(name: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / "docs" / "names.md").read_text(encoding="utf-8")))
    assert set(PUBLIC[name]) <= words


@pytest.mark.parametrize("name", ["anybit.torch", "anybit.jax"])
def test_stubs_say_what_is_there(name: str) -> None:
    """Editors read these files, and nothing else of packages that make their functions."""
    module = package(name)
    text = Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert sorted(functions) == OPERATORS
    for each, node in functions.items():
        wanted = inspect.signature(getattr(module, each)).parameters
        given = [*node.args.args, *node.args.kwonlyargs]
        assert [argument.arg for argument in given] == list(wanted)
        required = len(node.args.args) - len(node.args.defaults)
        defaults = [inspect.Parameter.empty] * required + [
            ast.literal_eval(default) for default in (*node.args.defaults, *node.args.kw_defaults)
        ]
        assert defaults == [parameter.default for parameter in wanted.values()]
        assert ast.get_docstring(node)
    names = next(node for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(names.value) == sorted(PUBLIC[name])


@pytest.mark.parametrize("name", [*PUBLIC, "anybit.ops", "anybit.compat", "anybit.cli"])
def test_a_name_is_a_module_or_something_else(name: str) -> None:
    """Not one or the other, depending on what was imported before."""
    module = package(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        framework = found.name if found.name in ("jax", "torch") else "anybit"
        if found.name.startswith("_") or not importlib.util.find_spec(framework):
            continue
        importlib.import_module(f"{name}.{found.name}")
        assert inspect.ismodule(getattr(module, found.name)), f"{name}.{found.name}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "anybit.formats"])
def test_packages_are_imported_by_what_needs_them(name: str) -> None:
    """`import anybit` loads none of the others, and so do the operators."""
    loaded = modules_after("import anybit, numpy as np; anybit.int_quant(np.ones(3), 1, 0, 4)")
    assert name == "anybit" or name not in loaded


def modules_after(code: str) -> set[str]:
    code = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_these_modules_of_ours() -> None:
    """The pin of what `import anybit` costs: the operators, what they stand on, and Ctrl-C."""
    ours = {each for each in modules_after("import anybit") if each.startswith("anybit")}
    found = {each.split(".")[1] for each in ours if "." in each}
    assert found == {"_native", "formats", "interrupts", "ops"}
    assert len(ours) < 30


def test_type_checkers_miss_names_that_are_not_there() -> None:
    """A `__getattr__` that they could see would make any name one of type Any."""
    tree = ast.parse((ROOT / "src/anybit/__init__.py").read_text(encoding="utf-8"))
    seen = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    assert "__getattr__" not in seen


def test_api_page_lists_all_names_functions_first() -> None:
    page = (ROOT / "docs" / "api" / "anybit.rst").read_text(encoding="utf-8")
    listed = re.findall(r"auto(function|class):: anybit\.(\w+)", page)
    modules = {"formats"}
    assert sorted(name for _, name in listed) == sorted({*PUBLIC["anybit"]} - modules)
    kinds = [kind for kind, _ in listed]
    assert kinds == sorted(kinds, reverse=True)
