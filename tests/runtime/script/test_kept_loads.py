"""A script that is run again loads what it loaded first, though the run has written it since."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.script.saves import KeptLoads


class Launch:
    """One launch of a script that loads files, in a run that writes them."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self._kept = KeptLoads(folder / "loaded", self.told.append)

    def loads(self, path: Path) -> str:
        return Path(self._kept.load(str(path))).read_text()

    def writes(self, path: Path, text: str) -> None:
        self._kept.before_write(str(path))
        path.write_text(text)


@pytest.fixture
def best(tmp_path: Path) -> Path:
    path = tmp_path / "best.weights.h5"
    path.write_text("of the first fit")
    return path


def test_relaunch_gets_what_the_first_launch_has_loaded_each_time(
    best: Path, tmp_path: Path
) -> None:
    first, second = Launch(tmp_path), Launch(tmp_path)
    for text in ("of the second fit", "of the third fit"):
        first.loads(best)
        first.writes(best, text)
        first.writes(best, f"{text}, later")
    assert first.loads(best) == "of the third fit, later"

    assert [second.loads(best) for _ in range(3)] == [
        "of the first fit",
        "of the second fit, later",
        "of the third fit, later",
    ]
    assert "as it was when this run loaded it first" in second.told[0]
    assert best.read_text() == "of the third fit, later"


def test_file_that_nobody_writes_again_is_read_where_it_is(best: Path, tmp_path: Path) -> None:
    first, second, third = (Launch(tmp_path) for _ in range(3))
    first.loads(best)
    other = tmp_path / "newer" / best.name
    other.parent.mkdir()
    first.writes(other, "of another model")
    best.write_text("of the user")

    assert second.loads(best) == "of the user"
    assert second.told == []
    assert not (tmp_path / "loaded").exists()
    first.writes(best, "of the second fit")
    assert third.loads(other) == "of another model"


def test_file_that_the_script_removes_is_kept_for_its_loads(best: Path, tmp_path: Path) -> None:
    kept = KeptLoads(tmp_path / "loaded", print)
    kept.load(str(best))
    kept.before_removal(str(tmp_path))
    best.unlink()

    assert Launch(tmp_path).loads(best) == "of the first fit"


def test_file_in_a_temporary_folder_is_kept_at_once_and_found_from_another_one(
    best: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    first, second = (
        KeptLoads(
            tmp_path / "loaded", told.append, lambda path, f=folder: path.replace(f, "folder")
        )
        for folder in (str(tmp_path), "/tmp/gone")
    )
    first.load(str(best))
    best.unlink()

    found = second.load(f"/tmp/gone/{best.name}")

    assert Path(found).read_text() == "of the first fit"
    assert told == []
