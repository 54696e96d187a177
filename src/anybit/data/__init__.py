# SPDX-License-Identifier: Apache-2.0
"""Datasets: files and arrays of samples, read in shards."""
