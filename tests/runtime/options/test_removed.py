"""What was removed is refused, or warned of, by one sentence with the way instead."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from holdfast.runtime.commands.command import stray_words
from holdfast.runtime.commands.main import main
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.sources import OF_SCRIPTS_TOO, REMOVED

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


@pytest.mark.parametrize("name", [*COMMANDS, *FLAGS])
def test_word_is_refused_or_warned_of_with_the_way_instead(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "report" if name == "--compare" else "run"
    sentence = f"{name} was removed: {REMOVED[name]}"
    typed = [command, name, "1", "train.py"] if name in FLAGS else [name, "train.py"]
    assert _refusal(capfd, *typed) == f"holdfast: error: {sentence}\n"

    table = f"[{command}]\n{name[2:]} = 1\n" if name in FLAGS else f"[{name}]\nx = 1\n"
    Path("holdfast.toml").write_text(table)
    assert sentence in _refusal(capfd, command, "train.py")

    if name in FLAGS:
        variable = f"HOLDFAST_{name[2:].replace('-', '_').upper()}"
        monkeypatch.setenv(variable, "1")
        assert f"warning: {variable} is ignored: {sentence}\n" in _refusal(capfd, "verify", "no")


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
