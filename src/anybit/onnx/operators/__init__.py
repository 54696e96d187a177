# SPDX-License-Identifier: Apache-2.0
"""This package's operators in models: identification, schemas, ONNX evaluator classes."""
