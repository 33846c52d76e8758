"""Map the top-level folders to the import package ``holdfast``.

The folders stand at the top level so that the layers are the first thing a reader sees.
They are imported as ``holdfast.*`` so that nothing clashes with a user's own
``checkpoint.py``.  Each folder with an ``__init__.py`` is a
package of its own.  Everything else is declared in pyproject.toml.
"""

from setuptools import find_packages, setup

FOLDERS = {
    "holdfast": "api",
    "holdfast.runtime": "runtime",
    "holdfast.recovery": "recovery",
    "holdfast.checkpoint": "checkpoint",
}

setup(
    packages=[
        package
        for name, folder in FOLDERS.items()
        for package in (name, *(f"{name}.{room}" for room in find_packages(folder)))
    ],
    package_dir=FOLDERS,
    package_data={"holdfast": ["py.typed"]},
)
