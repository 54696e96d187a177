# SPDX-License-Identifier: Apache-2.0
"""What is to be said of a quantized model, for people and for programs.

report     all of it, from a file or from what `quantize` gives
Report     what was found; `to_json` writes it down
Finding    something striking, and what to try
page       the same as a page
"""

from anybit.reporting.driver import report
from anybit.reporting.facts import Finding, Report
from anybit.reporting.html import page

__all__ = ["Finding", "Report", "page", "report"]
