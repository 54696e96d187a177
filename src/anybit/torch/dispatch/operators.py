# SPDX-License-Identifier: Apache-2.0
"""The operator functions of `anybit.torch`, by name.

They are in a module of their own, so that the package can import modules that use them.
"""

from typing import TYPE_CHECKING, Any

from anybit.ops import OPERATORS
from anybit.torch.dispatch.functions import make_function

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


globals().update({operator.name: make_function(operator) for operator in OPERATORS})
