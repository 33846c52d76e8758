"""The sum of leaves in the fixed tree, by plain recursion."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.recovery.reduction import FloatVector


def tree_sum(leaves: Sequence[FloatVector]) -> FloatVector:
    """Return the sum: the definition that everything else must agree with."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return tree_sum(leaves[:half]) + tree_sum(leaves[half:])
