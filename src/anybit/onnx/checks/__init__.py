# SPDX-License-Identifier: Apache-2.0
"""What `anybit.onnx.checks.checking` is made of: one file per kind of fault, one per target.

A file gives the findings of its kind for a `Subject`, in the order of the nodes.
"""
