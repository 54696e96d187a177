# SPDX-License-Identifier: Apache-2.0
"""Transfer functions: the abstract value of a node's output, from those of its inputs."""
