"""A digest of some samples, to compare what two workers or two launches read."""

from __future__ import annotations

import numpy as np

from holdfast.checkpoint.format.digest import Digest
from holdfast.runtime.model.data import Data, SampleIds
from holdfast.runtime.model.nest import named_leaves

_PROBED_SAMPLES = 64
"""Few, because each may lie in a chunk or a file of its own."""


def probed_ids(samples: int) -> SampleIds:
    """Return the numbers of some samples, evenly spaced, with the first and the last one."""
    return np.unique(np.linspace(0, samples - 1, _PROBED_SAMPLES).astype(np.int64))


def probe_of(data: Data) -> str:
    """Return a digest of the names, shapes, dtypes and bytes of some samples."""
    digest = Digest()
    digest.update(f"{len(data)}\n".encode())
    for name, part in zip("xyw", data.read(probed_ids(len(data))), strict=False):
        for path, leaf in named_leaves(part, name):
            array = np.asarray(leaf)
            digest.update(f"{path} {array.shape} {array.dtype}\n".encode())
            is_text = array.dtype == object
            digest.update(repr(array.tolist()).encode() if is_text else array.tobytes())
    return digest.hexdigest()
