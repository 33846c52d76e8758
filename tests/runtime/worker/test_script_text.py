"""The digest of a script: its text, its own modules, its arguments, and nothing of libraries."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from holdfast.runtime.worker.users_modules import script_digest


def test_script_its_modules_and_its_arguments_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, module = tmp_path / "train.py", tmp_path / "own_layers_of_the_script.py"
    script.write_text("one")
    module.write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = script_digest(script, ())

    assert script_digest(script, ()) == known
    assert script_digest(script, ("--fast",)) != known
    importlib.import_module(module.stem)
    imported = script_digest(script, ())
    module.write_text("A = 2\n")
    changed = script_digest(script, ())
    del sys.modules[module.stem]
    script.write_text("two")

    assert len({known, imported, changed, script_digest(script, ())}) == 4


def test_script_that_is_gone_has_a_digest(tmp_path: Path) -> None:
    assert script_digest(tmp_path / "gone.py", ())
