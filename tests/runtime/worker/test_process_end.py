"""What a script has left for its end is done as Python does it, and told of if it lasts."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

LEAVES_WORK = """
import atexit, concurrent.futures, gzip, multiprocessing, os, tempfile, threading, weakref
from pathlib import Path

def say(*words):
    os.write(1, f"{' '.join(words)}\\n".encode())  # whole lines

def fail():
    raise ValueError("no such thing")

def thread():
    first.wait()
    say("thread")

if __name__ == "__main__":
    multiprocessing.Process(target=Path("by process").touch).start()
    first = threading.Event()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    atexit.register(say, "atexit, the first one")
    atexit.register(fail)
    atexit.register(atexit.register, say, "registered late")
    atexit.register(thread)
    atexit.unregister(thread)
    threading._register_atexit(first.set)
    threading._register_atexit(say, "of threading")
    executor.submit(first.wait)
    executor.submit(say, "submitted")
    threading.Thread(target=thread).start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    folder = tempfile.TemporaryDirectory(dir=".", prefix="removed-")
    weakref.finalize(first, say, "finalized")
    text = open("open.txt", "w")
    text.write("never closed")
    packed = gzip.open("open.gz", "wt")
    packed.write("never closed")
    say("the script ends")
"""
"""The first event is set by a call of threading, so that nothing runs before the end."""

WORKER = """
import os, sys
from holdfast.runtime.worker.worker import EndWatch, end_as_python, flush_output
from holdfast.runtime.worker.worker import _run
_run(sys.argv[1])
with EndWatch(print):
    end_as_python()
flush_output()
os._exit(0)
"""


def _end(folder: Path, *command: str) -> tuple[list[str], list[str], dict[str, bytes]]:
    folder.mkdir()
    run = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return run.stdout.splitlines(), run.stderr.splitlines()[-1:], files


def test_script_ends_as_in_python(tmp_path: Path) -> None:
    """Some lines come from several threads and processes, in any order."""
    script = tmp_path / "script.py"
    script.write_text(LEAVES_WORK)

    said, complaint, files = _end(tmp_path / "worker", "-c", WORKER, str(script))
    pythons = _end(tmp_path / "python", str(script))

    assert sorted(said) == sorted(pythons[0])
    assert said[:2] == pythons[0][:2] == ["the script ends", "of threading"]
    assert said.index("finalized") > said.index("submitted")
    assert said[-1] == pythons[0][-1] == "atexit, the first one"
    assert complaint == pythons[1]
    assert gzip.decompress(files.pop("open.gz")) == b"never closed"  # Python may leave it torn
    pythons[2].pop("open.gz")
    assert files == pythons[2] == {"open.txt": b"never closed", "by process": b""}


TOLD = """
import os, sys, threading
from holdfast.runtime.worker import worker
worker.TOLD_AFTER_S, worker.CUT_AFTER_S = 1, 2
def tell(text):
    print(text, flush=True)
    told.set()
def cut():
    print("cut", flush=True)
    os._exit(0)
told, never = threading.Event(), threading.Event()
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
with worker.EndWatch(tell, cut if "cut" in sys.argv else None):
    worker.end_as_python()
print("over", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (
            "threading.Thread(target=never.wait, daemon=True).start()\n"
            "def poll():\n    told.wait()\n"
            "threading.Thread(target=poll, name='poller').start()\n",
            "its thread 'poller' is still in poll (script.py:3)",
        ),
        (
            "import atexit\n@atexit.register\ndef upload():\n    told.wait()\n",
            "a call of its end is still in upload (script.py:4)",
        ),
        (
            "import multiprocessing\nleft, right = multiprocessing.Pipe()\n"
            "def tell(text):\n    print(text, flush=True)\n    left.send(1)\n"
            "multiprocessing.Process(target=right.recv, name='feeder').start()\n",
            "its process 'feeder' still runs",
        ),
    ],
    ids=["thread", "atexit", "process"],
)
def test_end_that_lasts_is_told_with_what_it_waits_for(
    tmp_path: Path, script: str, what: str
) -> None:
    place = tmp_path / "script.py"
    place.write_text(script)

    said, _, _ = _end(tmp_path / "in", "-c", TOLD, str(place))

    assert said == [
        f"the script has come to its end, but {what}: the job waits for it, as Python does; "
        "end it in the script, or stop the job (Ctrl-C)",
        "over",
    ]


def test_end_that_the_job_has_decided_is_cut(tmp_path: Path) -> None:
    place = tmp_path / "script.py"
    place.write_text("threading.Thread(target=never.wait).start()\n")

    said, _, _ = _end(tmp_path / "in", "-c", TOLD, str(place), "cut")

    assert said[1:] == ["cut"]
