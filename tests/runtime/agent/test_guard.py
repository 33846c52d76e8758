from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast.runtime.mpiexec import guard
from holdfast.runtime.system.channel import pair


@pytest.mark.parametrize(
    "text",
    ["", "plain", 'a "quoted" \\ path', "line\nbreak\ttab\x00\x1f\x7f", "ü \u2028 \U0001f600"],
)
def test_text_is_quoted_as_json_does(text: str) -> None:
    assert json.loads(guard._quoted(text)) == text


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
