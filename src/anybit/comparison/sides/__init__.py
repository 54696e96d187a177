# SPDX-License-Identifier: Apache-2.0
"""What can run a model, and what it says of every tensor."""
