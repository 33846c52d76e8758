"""Map the top-level folders to the import package ``holdfast``.

The folders stand at the top level so that the layers are the first thing a
reader sees; they are imported as ``holdfast.*`` so that nothing clashes with a
user's own ``checkpoint.py``.  Everything else is declared in pyproject.toml.
"""

from setuptools import setup

LAYERS = {
    "holdfast.runtime": "runtime",
    "holdfast.runtime.cli": "runtime/cli",
    "holdfast.recovery": "recovery",
    "holdfast.checkpoint": "checkpoint",
}

setup(
    packages=list(LAYERS),
    package_dir=dict(LAYERS),
    package_data={layer: ["py.typed"] for layer in LAYERS},
)
