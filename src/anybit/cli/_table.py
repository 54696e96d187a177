# SPDX-License-Identifier: Apache-2.0
"""The table of commands: importing it imports none of them."""

COMMANDS = {
    "run": "Run a model on given or random inputs and check its outputs.",
    "info": "Show a model's quantizers, operators, weights, opsets and sizes.",
    "check": "List what is wrong with a model, one line each, with the remedy.",
    "analyze": "Show the cost and value ranges of every layer, and where float32 rounds.",
    "clean": "Normalize a model, fold constants, remove dead nodes, infer shapes.",
    "convert": "Convert a model to another form with bit-identical results.",
    "diff": "Find the first tensor in which two models or two runtimes differ.",
    "compile": "Compile the quantized layers of a model to integer code.",
    "quantize": "Quantize a float model and report the effect on its outputs.",
    "report": "Report on every layer of a quantized model.",
    "evaluate": "Measure models on data: metric, similarity to the first, time, size.",
}
"""Each command and its help in one line: the first line of the docstring of its function."""
