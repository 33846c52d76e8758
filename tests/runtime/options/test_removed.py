"""What was removed is refused, or warned of, by one sentence with the way instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.cli.main import main
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.removed import REMOVED
from holdfast.runtime.options.sources import mistyped_variables

FLAGS = sorted(name for name in REMOVED if name.startswith("--"))
COMMANDS = sorted(set(REMOVED) - set(FLAGS))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


def _refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code == ExitCode.USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_refused_with_the_way_instead(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = f"{command} was removed: {REMOVED[command]}"
    assert _refusal(capsys, command, "train.py") == f"holdfast: error: {sentence}\n"

    Path("holdfast.toml").write_text(f"[{command}]\nx = 1\n")
    assert f"heading [{command}], but {sentence}" in _refusal(capsys, "run", "train.py")


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_is_refused_with_the_way_instead(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "report" if flag == "--compare" else "run"
    sentence = f"{flag} was removed: {REMOVED[flag]}"
    assert _refusal(capsys, command, flag, "1", "train.py") == f"holdfast: error: {sentence}\n"
    Path("holdfast.toml").write_text(f"[{command}]\n{flag[2:]} = 1\n")
    assert sentence in _refusal(capsys, command, "train.py")


@pytest.mark.parametrize("flag", FLAGS)
def test_variable_is_warned_of(flag: str) -> None:
    variable = f"HOLDFAST_{flag[2:].replace('-', '_').upper()}"
    assert list(mistyped_variables({variable: "1"})) == [
        f"warning: {variable} is ignored: {flag} was removed: {REMOVED[flag]}"
    ]
