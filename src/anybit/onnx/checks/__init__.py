# SPDX-License-Identifier: Apache-2.0
"""The parts of `anybit.onnx.checks.checking`: one file per kind of fault, one per target.

A file yields the findings of its kind for a `Subject`, in the order of the nodes.
"""
