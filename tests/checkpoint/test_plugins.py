"""HDF5's plugins are forbidden while it is loaded, and nobody else notices."""

from __future__ import annotations

import os

import pytest

from holdfast.checkpoint.shard import no_plugins

VARIABLE = "HDF5_PLUGIN_PRELOAD"


@pytest.mark.parametrize("before", [None, "", "/opt/plugins", "::"])
def test_environment_is_as_before_whatever_it_was(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)

    with no_plugins():
        assert os.environ[VARIABLE] == "::"

    assert os.environ.get(VARIABLE) == before


def test_environment_is_as_before_when_loading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/plugins")

    with pytest.raises(ImportError), no_plugins():
        raise ImportError("no HDF5")

    assert os.environ[VARIABLE] == "/opt/plugins"
