from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.host import guard
from holdfast.runtime.system.channel import FDS, Listener, pair


@pytest.mark.parametrize(
    "text",
    ["", "plain", 'a "quoted" \\ path', "line\nbreak\ttab\x00\x1f\x7f", "ü \u2028 \U0001f600"],
)
def test_text_is_quoted_as_json_does(text: str) -> None:
    """As its bytes, which mean the same in each locale."""
    assert os.fsencode(json.loads(guard._quoted(text))) == os.fsencode(text)
    assert guard._quoted(text).isascii()


def test_bytes_that_are_no_utf8_survive() -> None:
    text = os.fsdecode(b"/data/\xff\xfe")

    line = guard._quoted(text).encode("utf-8", "surrogatepass")

    assert os.fsencode(json.loads(line)) == b"/data/\xff\xfe"


def test_peace_is_spelled_as_channels_do() -> None:
    ours, theirs = pair()
    ours.send({"kind": "worker_ended", "clean": True})

    received = os.read(theirs.fileno(), 100)

    assert received == guard._WORKER_HAS_LEFT
    ours.close()
    theirs.close()


def test_guard_imports_only_what_is_compiled_in() -> None:
    code = (
        f"import sys\nsource = open({guard.__file__!r}).read()\n"
        "exec(compile(source, 'guard', 'exec'), {'__name__': 'guard'})\n"
        "heavy = ('json', 'socket', 'enum', 're', 'typing', 'holdfast')\n"
        "print([module for module in heavy if module in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True
    )

    assert found.stdout == "[]\n"


@pytest.mark.process
def test_guard_hands_over_the_connection_that_hydra_gave_its_rank(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "agent.sock")
    theirs, ours = os.pipe()
    environment = {
        "HOLDFAST_AGENT": str(tmp_path / "agent.sock"),
        "HOLDFAST_GENERATION": "3",
        "PMI_RANK": "2",
        "PMI_FD": str(ours),
    }
    command = [sys.executable, "-I", "-S", guard.__file__]
    process = subprocess.Popen(command, env=environment, pass_fds=[ours])
    os.close(ours)

    assert select.select([listener], [], [], 60)[0]
    agent = listener.accept()
    assert agent is not None
    hello = agent.receive()

    assert hello is not None
    assert (hello["rank"], hello["generation"]) == (2, 3)
    assert hello["env"] == {"PMI_RANK": "2", "PMI_FD": str(ours)}
    (connection,) = hello[FDS]
    os.write(connection, b"from the worker")
    os.close(connection)
    assert os.read(theirs, 100) == b"from the worker"
    assert os.read(theirs, 100) == b""  # the guard keeps no end of it
    agent.close()
    listener.close()
    os.close(theirs)
    assert process.wait(60) == -9
