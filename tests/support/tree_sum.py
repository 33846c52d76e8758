"""The sum of leaves in the fixed tree, by plain recursion, and leaves that show its order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.recovery.reduction import FloatVector


def tree_sum(leaves: Sequence[FloatVector]) -> FloatVector:
    """Return the sum: the definition that everything else must agree with."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return tree_sum(leaves[:half]) + tree_sum(leaves[half:])


def wide_leaves(count: int, seed: int, size: int = 33) -> list[FloatVector]:
    """Return leaves whose sums depend on every pair that is added.

    Their elements span two powers of ten at first and sixty at last.
    """
    generator = np.random.default_rng(seed)
    scales = 10.0 ** (generator.uniform(-1, 1, (count, size)) * np.linspace(1, 30, size))
    return list((generator.standard_normal((count, size)) * scales).astype(np.float32))
