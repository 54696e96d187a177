# SPDX-License-Identifier: Apache-2.0
"""`python -m anybit` is the command `anybit`."""

from anybit.cli import main

main()
