"""The examples as modules: their file names begin with a number, so they cannot be imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).resolve().parents[3] / "examples"


def load(name: str) -> ModuleType:
    """Run the example ``name`` as a module, without its command line, and return it."""
    spec = importlib.util.spec_from_file_location("example", _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
