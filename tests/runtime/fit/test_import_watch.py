"""A module is imported as ever, and its watcher hears of it once."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.runtime.fit.import_watch import when_imported, without_log_lines


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that nobody has imported."""
    package = tmp_path / "seldom_heard_of"
    package.mkdir()
    (package / "__init__.py").write_text("from seldom_heard_of import part\nvalue = 1\n")
    (package / "part.py").write_text("name = __name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("seldom_heard_of", "seldom_heard_of.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "seldom_heard_of"


def test_watcher_is_called_once_with_the_module_complete(module: str) -> None:
    heard: list[int] = []
    when_imported(module, lambda: heard.append(sys.modules[module].value))
    assert heard == []

    imported = importlib.import_module(module)
    importlib.reload(imported)

    assert heard == [1]
    assert imported.part.name == "seldom_heard_of.part"
    assert type(imported.__spec__.loader).__name__ == "SourceFileLoader"


def test_module_that_is_there_is_told_at_once(module: str) -> None:
    importlib.import_module(module)
    heard: list[str] = []

    when_imported(module, lambda: heard.append("now"))

    assert heard == ["now"]


def test_two_watchers_of_one_module_hear_of_it(module: str) -> None:
    heard: list[int] = []
    when_imported(module, lambda: heard.append(1))
    when_imported(module, lambda: heard.append(2))

    importlib.import_module(module)

    assert sorted(heard) == [1, 2]


def test_error_of_a_watcher_is_that_of_the_import(module: str) -> None:
    def refuse() -> None:
        raise ValueError("not here")

    when_imported(module, refuse)

    with pytest.raises(ValueError, match="not here"):
        importlib.import_module(module)


def test_module_that_does_not_exist_stays_unknown(module: str) -> None:
    when_imported("never_written_by_anybody", lambda: pytest.fail("there is no such module"))

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_written_by_anybody")


def test_informative_lines_of_a_log_are_dropped_and_all_others_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795437874.402156   10642 port.cc:153] oneDNN custom operations are on.",
        "E0000 00:00:1795437874.402157   10642 cuda.cc:1] no device",
        "Traceback (most recent call last):",
    )

    def load() -> None:
        with without_log_lines():
            os.write(2, "".join(f"{line}\n" for line in lines).encode())
            raise ImportError

    with pytest.raises(ImportError):
        load()

    assert capfd.readouterr().err.splitlines() == list(lines[2:])


@pytest.mark.parametrize("fails", [False, True])
def test_what_surrounds_an_import_ends_before_the_watcher_hears_of_it(
    module: str, tmp_path: Path, *, fails: bool
) -> None:
    heard: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        heard.append("begins")
        try:
            yield
        finally:
            heard.append("ends")

    when_imported(module, lambda: heard.append("imported"), around)
    if fails:
        (tmp_path / module / "__init__.py").write_text("1 / 0\n")
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(module)
    else:
        importlib.import_module(module)

    assert heard == ["begins", "ends", *([] if fails else ["imported"])]


def test_module_finds_its_files_while_it_is_imported(module: str, tmp_path: Path) -> None:
    code = "import pkgutil\nvalue = pkgutil.get_data(__name__, 'part.py')\n"
    (tmp_path / module / "__init__.py").write_text(code)
    when_imported(module, lambda: None)

    assert importlib.import_module(module).value == b"name = __name__\n"


def test_watcher_is_gone_once_its_module_is_found_and_not_before(module: str) -> None:
    before = list(sys.meta_path)
    when_imported(module, lambda: None)

    importlib.util.find_spec("never_written_by_anybody")
    assert len(sys.meta_path) == len(before) + 1
    importlib.import_module(module)

    assert sys.meta_path == before
