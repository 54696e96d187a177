# SPDX-License-Identifier: Apache-2.0
"""Scripts of this checkout that are part of no package, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_module(path: Path) -> ModuleType:
    """Execute a file as a module, without adding it to the imported ones."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
