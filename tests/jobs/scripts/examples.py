"""The examples as modules: their file names begin with a number, so they cannot be imported.

Scripts that change the custom replica train it on a workload of the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast import Result, Trainer

_FOLDER = Path(__file__).resolve().parents[3] / "examples"


def load(name: str) -> ModuleType:
    """Run the example ``name`` as a module, without its command line, and return it."""
    spec = importlib.util.spec_from_file_location("example", _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flags_of_workload(*further: str) -> argparse.ArgumentParser:
    """Return a parser of a workload's numbers, and of further ones."""
    parser = argparse.ArgumentParser()
    for name in ("samples", "global-batch", "epochs", "save-every", "features", *further):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser


def train(
    example: ModuleType, make: Callable[[], Any], options: argparse.Namespace, **settings: Any
) -> Result:
    """Train what ``make`` returns on the workload of ``options``."""
    return Trainer(
        make,
        example.clusters(options.samples, options.features, 10),
        global_batch=options.global_batch,
        epochs=options.epochs,
        validation=example.clusters(100, options.features, 10),
        save_every=options.save_every,
        **settings,
    ).run()
