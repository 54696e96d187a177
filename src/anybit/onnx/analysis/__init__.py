# SPDX-License-Identifier: Apache-2.0
"""What can be said of the tensors of a graph before it runs: codes, ranges, sums of products.

carriers   what is known of one tensor
analysis   `analyze`: the carriers of a graph, and its products
products   one sum of products: accumulators, and whether float32 computes it exactly
mismatch   what models may get wrong: nothing else that goes wrong is caught
rules      what each operator does to carriers: one function and one row each
"""
