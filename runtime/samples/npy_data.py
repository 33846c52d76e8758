"""Samples in ``.npy`` files, mapped into memory."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import ArrayData
from holdfast.runtime.model.nest import Nest, map_leaves


class NpyData(ArrayData):
    """Samples in ``.npy`` files; the workers of a host share the pages that they read.

    Exact on resume because a sample is found by its row, and the files may not change during a
    run: shapes, types and some rows are compared at each start.

    Args:
        x: the file of the inputs, or a dict, list or tuple of files.
        y: the same for targets, None for a model that needs none.
        sample_weight: the same for sample weights.

    Raises:
        ProgramError: a file is no ``.npy`` file, or files have different numbers of rows.
    """

    def __init__(self, x: Nest, y: Nest = None, sample_weight: Nest = None) -> None:
        super().__init__(*(map_leaves(_mapped, part) for part in (x, y, sample_weight)))


def _mapped(path: str | os.PathLike[str]) -> Any:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ProgramError(
            f"{os.fspath(path)} cannot be mapped as a .npy file: {error}; write it with "
            "numpy.save, as numbers or texts of one length"
        ) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ProgramError(
            f"{os.fspath(path)} is an archive of several arrays, which cannot be mapped: write "
            "each array to a .npy file, with numpy.save"
        )
    return found
