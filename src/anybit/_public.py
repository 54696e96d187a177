# SPDX-License-Identifier: Apache-2.0
"""The table of public names of `anybit`.

`__all__`, lazy loading, the stub file, docs/names.md and the API reference are made from it.
"""

from anybit._lazy import PublicName

PUBLIC = {
    "load": PublicName("anybit.model", "Models", "Load a model, ready to run.", "models.md"),
    "save": PublicName(
        "anybit.onnx.files.writer",
        "Models",
        "Write an `onnx_ir.Model`, an `onnx.ModelProto` or a result.",
    ),
    "quantize": PublicName(
        "anybit.ptq", "Models", "Quantize a float model after training.", "quantize.md"
    ),
    "compile": PublicName(
        "anybit.compiler.pipeline",
        "Models",
        "Compile quantized layers to integer code.",
        "compile.md",
    ),
    "convert": PublicName(
        "anybit.onnx.conversion",
        "Models",
        "Convert between QONNX, QDQ and standard operators.",
        "convert.md",
    ),
    "inspect": PublicName(
        "anybit.inspection",
        "Models",
        "Report the contents, layers and value ranges of a model.",
        "inspect.md",
    ),
    "check": PublicName(
        "anybit.onnx.checks.checking",
        "Models",
        "List the problems of a model, also for a target.",
        "check.md",
    ),
    "clean": PublicName(
        "anybit.onnx.cleaning",
        "Models",
        "Normalize a model, fold constants and infer shapes.",
        "clean.md",
    ),
    "diff": PublicName("anybit.comparison", "Models", "Find where two models disagree.", "diff.md"),
    "evaluate": PublicName(
        "anybit.evaluation", "Models", "Measure metrics of models on a dataset.", "evaluate.md"
    ),
    "int_quant": PublicName(
        "anybit.ops.int_quant", "Operators", "Quantize to integers.", "operators/int_quant.md"
    ),
    "float_quant": PublicName(
        "anybit.ops.float_quant", "Operators", "Quantize to minifloats.", "operators/float_quant.md"
    ),
    "trunc": PublicName(
        "anybit.ops.trunc", "Operators", "Drop low-order bits (version 2).", "operators/trunc.md"
    ),
    "trunc_v1": PublicName(
        "anybit.ops.trunc_v1",
        "Operators",
        "Drop low-order bits (version 1).",
        "operators/trunc_v1.md",
    ),
    "bipolar_quant": PublicName(
        "anybit.ops.bipolar_quant",
        "Operators",
        "Quantize to -1 and 1.",
        "operators/bipolar_quant.md",
    ),
    "dynamic_quantize": PublicName(
        "anybit.ops.dynamic_quantize",
        "Operators",
        "Quantize to int8 or uint8 codes with given scales.",
        "operators/dynamic_quantize.md",
    ),
    "dynamic_dequantize": PublicName(
        "anybit.ops.dynamic_dequantize",
        "Operators",
        "Dequantize the result of `dynamic_quantize`.",
        "operators/dynamic_dequantize.md",
    ),
    "block_quant": PublicName(
        "anybit.ops.block_quant",
        "Operators",
        "Quantize to MX, NVFP4 or integer blocks.",
        "operators/block_quant.md",
    ),
    "RoundingMode": PublicName(
        "anybit.ops", "Operators", "The rounding modes.", "rounding_modes.md"
    ),
    "formats": PublicName(
        "anybit.formats", "Operators", "Number formats as values.", "index.md#number-formats"
    ),
    "num_threads": PublicName(
        "anybit._native",
        "Threads",
        "Return the number of threads for large arrays.",
        "index.md#threads-and-instruction-sets",
    ),
    "set_num_threads": PublicName(
        "anybit._native",
        "Threads",
        "Set the number of threads for large arrays.",
        "index.md#threads-and-instruction-sets",
    ),
    "CleanResult": PublicName("anybit.onnx.cleaning", "Results", "The result of `clean`."),
    "CompiledModel": PublicName("anybit.compiler.compiled", "Results", "The result of `compile`."),
    "Conversion": PublicName("anybit.onnx.conversion", "Results", "The result of `convert`."),
    "Difference": PublicName("anybit.comparison", "Results", "The result of `diff`."),
    "EvaluationRow": PublicName("anybit.evaluation", "Results", "One model of an `Evaluation`."),
    "Evaluation": PublicName("anybit.evaluation", "Results", "The result of `evaluate`."),
    "Finding": PublicName("anybit.onnx.checks.finding", "Results", "One result of `check`."),
    "Model": PublicName("anybit.model", "Results", "The result of `load`; `run` runs it."),
    "ModelReport": PublicName("anybit.inspection", "Results", "The result of `inspect`."),
    "QuantizationResult": PublicName("anybit.ptq", "Results", "The result of `quantize`."),
    "AnybitError": PublicName("anybit.errors", "Errors", "The base class of the errors below."),
    "ModelError": PublicName("anybit.errors", "Errors", "A model that cannot be used."),
    "DataError": PublicName("anybit.errors", "Errors", "Arrays or files of data that do not fit."),
    "OptionError": PublicName("anybit.errors", "Errors", "An argument with an unsupported value."),
    "DependencyError": PublicName("anybit.errors", "Errors", "An optional package is missing."),
}
