# SPDX-License-Identifier: Apache-2.0
"""Preparation of models for the analysis."""
