"""The command line, called in this process as from a shell."""

from __future__ import annotations

import pytest

from holdfast.runtime.commands.main import main


def holdfast_code(*argv: object) -> int:
    """Return the exit code of ``holdfast`` with these arguments."""
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in argv])
    assert isinstance(caught.value.code, int)
    return caught.value.code
