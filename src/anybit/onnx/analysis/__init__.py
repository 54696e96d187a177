# SPDX-License-Identifier: Apache-2.0
"""Static analysis of tensors: codes, ranges and sums of products.

abstract_values  the possible values of one tensor
analysis         `analyze`: the abstract values of a graph, and its products
products         one sum of products: accumulators, and exactness in float32
mismatch         the only error that analyses catch: sizes that do not fit
rules            the transfer function of each operator: one function and one row each
"""
