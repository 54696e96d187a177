# SPDX-License-Identifier: Apache-2.0
"""Our operators in models: which node is which, schemas, classes for ONNX's evaluator."""
