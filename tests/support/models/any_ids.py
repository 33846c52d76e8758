"""Numbers of samples in any order, for tests of what reads by number."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st


def ids_below(samples: int) -> st.SearchStrategy[Any]:
    """Return any numbers of samples, in any order, some of them twice."""
    numbers = st.lists(st.integers(0, samples - 1), max_size=3 * samples)
    return numbers.map(lambda found: np.array(found, np.int64))
