"""What `holdfast chaos` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import holdfast_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a script and a plan without strikes."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "empty"):
        (tmp_path / name).write_text("")
    (tmp_path / "of b").write_text("kill worker of b at 1s")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "job", "words"),
    [
        ([], ["--run-dir", "x", "train.py"], "leave out --run-dir"),
        ([], ["--fresh", "train.py"], "leave out --fresh"),
        ([], ["gone.py"], "script gone.py does not exist"),
        (["--kinds", "maim"], ["train.py"], "cannot read the kind of strike 'maim'"),
        (["--kinds", ""], ["train.py"], "--kinds is empty"),
        (["--kinds", "kill host"], ["train.py"], "the job has one host"),
        (["--plan", "of b"], ["train.py"], "names a host, and the job has one"),
        (["--plan", "of b"], ["--hosts", "localhost,c", "train.py"], "names no host to be struck"),
        (["--plan", "missing"], ["train.py"], "the plan missing cannot be read: No such file"),
        (["--plan", "empty"], ["train.py"], "the plan has no strike"),
        (["--plan", "missing", "--mtbf", "3"], ["train.py"], "--plan and --mtbf both choose"),
        (["--plan", "missing", "--seed", "3"], ["train.py"], "--plan and --seed both choose"),
        (["--plan", "missing", "--count", "3"], ["train.py"], "--plan and --count both choose"),
        (["--plan", "missing", "--kinds", "kill"], ["train.py"], "--plan and --kinds both choose"),
        (["--mtbf", "3", "--count", "3"], ["train.py"], "--mtbf and --count both choose"),
    ],
)
def test_request_without_sense_is_refused_in_one_line_and_leaves_nothing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    job: list[str],
    words: str,
) -> None:
    code = holdfast_code("chaos", *options, "--", "run", *job)

    said = capsys.readouterr().err
    assert (code, len(said.splitlines())) == (2, 1)
    assert words in said
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "of b", "train.py"]
