from __future__ import annotations

import inspect

from holdfast.recovery import errors
from holdfast.recovery.errors import RecoveryError


def test_tree_in_the_docstring_shows_every_error() -> None:
    leaves = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, RecoveryError)
    }

    drawn = {line.split()[1] for line in (errors.__doc__ or "").splitlines() if "─" in line}

    assert drawn | {"RecoveryError"} == leaves


def test_leaves_have_one_root() -> None:
    assert all(leaf.__bases__ == (RecoveryError,) for leaf in RecoveryError.__subclasses__())
