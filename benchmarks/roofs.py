# SPDX-License-Identifier: Apache-2.0
"""Rates of the best instruction loops of the ISA level in use, in 10^9 multiplications a second.

No kernel can be faster: see `_roofs.py`. Needs a C compiler.
"""

from _measure import arguments, machine, show
from _roofs import roofs

from anybit import _native


def main() -> None:
    options = arguments(__doc__).parse_args()
    level = _native.isa()
    rows = [(name, f"{rate / 1e9:.0f}") for name, rate in roofs(level).items()]
    print(f"{machine()}; level {level}; one thread")
    show("Roofs, GMAC/s", ("loop", "rate"), rows, options.markdown)


if __name__ == "__main__":
    main()
