# SPDX-License-Identifier: Apache-2.0
"""Reports on models: contents, layers, values on data, results of `quantize` and `compile`.

inspect                describe a model
report_quantization    describe the result of `quantize`
report_compilation     describe the result of `compile`
ModelReport            the description; `to_json`, `to_html` and `str` write it
LayerReport            one layer of it
"""

from anybit.inspection.collect import inspect, report_compilation, report_quantization
from anybit.inspection.model_report import LayerReport, ModelReport

__all__ = ["LayerReport", "ModelReport", "inspect", "report_compilation", "report_quantization"]
