# SPDX-License-Identifier: Apache-2.0
"""The table of commands: importing it imports none of them."""

COMMANDS = {
    "run": "Run a model on given or random inputs and check its outputs.",
    "inspect": "Show a model's operators, quantizers, sizes, layers and value ranges.",
    "check": "List the problems of a model, each with its remedy.",
    "clean": "Normalize a model, fold constants, remove dead nodes, infer shapes.",
    "convert": "Convert a model to another form in which its operators compute the same values.",
    "diff": "Find the first tensor in which two models or two runtimes differ.",
    "compile": "Compile the quantized layers of a model to integer code.",
    "quantize": "Quantize a float model and report the effect on its outputs.",
    "evaluate": "Measure models on data: metric, similarity to the first, time, size.",
}
"""Each command and its help in one line: the first line of the docstring of its function."""
