"""What was removed is refused, or warned of, by one sentence with the way instead."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from holdfast.runtime.commands.command import stray_words
from holdfast.runtime.commands.main import main
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.sources import OF_SCRIPTS_TOO, REMOVED, mistyped_variables

FLAGS = sorted(name for name in REMOVED if name.startswith("--"))
NAMES = sorted(name for name in REMOVED if "." in name)
COMMANDS = sorted(set(REMOVED) - set(FLAGS) - set(NAMES))


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


@pytest.mark.parametrize("name", NAMES)
def test_name_of_python_is_refused_with_the_way_instead(name: str) -> None:
    package, _, attribute = name.partition(".")
    sentence = re.escape(f"{name} was removed: {REMOVED[name]}")
    with pytest.raises(ImportError, match=sentence):
        exec(f"from {package} import {attribute}")
    with pytest.raises(ImportError, match=sentence):
        getattr(importlib.import_module(package), attribute)
    assert not hasattr(importlib.import_module(package), "nothing")


@pytest.mark.parametrize("flag", sorted(set(FLAGS) - OF_SCRIPTS_TOO))
@pytest.mark.parametrize("words", ["{} 1", "-n 4 {}=1"])
def test_flag_behind_a_script_is_refused_unless_it_names_it(
    flag: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words.format(flag).split()
    assert _refusal(capsys, "run", "train.py", *argv) == (
        f"holdfast: error: {flag} was removed: {REMOVED[flag]}; if it is meant for train.py, "
        f"put -- before: `holdfast run -- train.py {' '.join(argv)}`\n"
    )
    Path("train.py").write_text(f"add_argument({flag!r})")
    assert stray_words(Path("train.py"), [flag, "1"]) == ([], [flag, "1"])


@pytest.mark.parametrize("word", sorted({*OF_SCRIPTS_TOO, *COMMANDS}))
def test_words_that_scripts_have_too_are_left_to_them(word: str) -> None:
    assert stray_words(Path("train.py"), [word, "1"]) == ([], [word, "1"])


def test_every_command_warns_of_removed_variables(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SCRUB_EVERY", "1h")
    with pytest.raises(SystemExit):
        main(["list"])
    assert (
        "warning: HOLDFAST_SCRUB_EVERY is ignored: --scrub-every was rem" in capfd.readouterr().err
    )
