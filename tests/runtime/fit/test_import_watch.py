"""A module is imported as ever, and its watcher hears of it once."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from holdfast.runtime.fit.script_setup import when_imported, without_log_lines


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


def _asks_for_a_part(module: str) -> None:
    importlib.util.find_spec(f"{module}.part")


def _asks_pkgutil(module: str) -> None:
    assert module in {found.name for found in pkgutil.iter_modules()}
    pkgutil.get_importer(sys.path[0]).find_spec(module)  # type: ignore[union-attr]
    importlib.util.find_spec(module)


def _fails_first(module: str) -> None:
    with _in_place_of_init(module, "1 / 0\n"), pytest.raises(ZeroDivisionError):
        importlib.import_module(module)


def _lacks_a_name_first(module: str) -> None:
    code = "from seldom_heard_of.nowhere import name\n"
    with _in_place_of_init(module, code), pytest.raises(ImportError):
        importlib.import_module(module)


def _imports_in_a_thread(module: str) -> None:
    thread = threading.Thread(target=importlib.import_module, args=(module,))
    thread.start()
    thread.join()


def _imports_when_used(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[module] = lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    assert lazy.value == 1


def _makes_a_module_of_the_spec(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _chains_its_own_hook(module: str) -> None:
    """As the hooks of tracing libraries do: first in the list, and they ask the others."""

    class Hook(MetaPathFinder):
        is_asking = False

        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            if name != module or self.is_asking:
                return None
            self.is_asking = True
            return importlib.util.find_spec(name)

    sys.meta_path.insert(0, Hook())


@contextmanager
def _in_place_of_init(module: str, code: str) -> Iterator[None]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin)
    good = place.read_text()
    place.write_text(code)
    yield
    shutil.rmtree(place.parent / "__pycache__", ignore_errors=True)
    place.write_text(good)


@pytest.mark.parametrize(
    "first",
    [
        importlib.util.find_spec,
        *(_asks_for_a_part, _asks_pkgutil, _fails_first, _lacks_a_name_first),
        *(_imports_in_a_thread, _imports_when_used, _makes_a_module_of_the_spec),
        _chains_its_own_hook,
    ],
)
def test_watcher_hears_of_its_module_once_whatever_a_script_does_first(
    module: str, first: Callable[[str], object]
) -> None:
    before = list(sys.meta_path)
    heard: list[int] = []
    when_imported(module, lambda: heard.append(importlib.import_module(module).value))

    importlib.util.find_spec("never_written_by_anybody")
    first(module)
    imported = importlib.import_module(module)
    importlib.reload(imported)

    assert heard == [1]
    assert type(imported.__spec__.loader).__name__ == "SourceFileLoader"
    assert [found for found in sys.meta_path if type(found).__name__ != "Hook"] == before


def test_watcher_that_refused_is_asked_again(module: str) -> None:
    heard: list[str] = []

    def refuse_once() -> None:
        heard.append("asked")
        if len(heard) == 1:
            raise ValueError("not here")

    when_imported(module, refuse_once)

    with pytest.raises(ValueError, match="not here"):
        importlib.import_module(module)
    importlib.import_module(module)

    assert heard == ["asked", "asked"]
