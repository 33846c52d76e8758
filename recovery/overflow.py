"""Sums that may overflow without a warning.

A sum of finite gradients may be infinite.  That is no news to a user at the
place where it happens: the vote refuses such a step on all workers alike, and
the error that ends the job tells it.

``np.errstate`` says the same, but entering it takes ten microseconds when the
caches are cold, and a step adds up a dozen times.  Since NumPy 2 the setting is
a context variable, so a context in which it is set once will do.
"""

from __future__ import annotations

import contextvars

import numpy as np


def quiet_context() -> contextvars.Context:
    """Return a context of its own in which floats may overflow; for one thread at a time."""
    context = contextvars.copy_context()
    context.run(np.seterr, over="ignore", invalid="ignore")
    return context
