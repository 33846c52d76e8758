"""Keras's own tests under ``holdfast run``; see ci/keras_own.

Three things are done in order.  Each test module runs with plain Keras, which says which tests
count.  These run in jobs of some 25, each with one and with two workers: a test has passed if it
has passed on every worker.  A job that ends before its last test costs the test that it was in;
another job takes the rest.  Then the outcomes are compared with the known differences, which may
only become fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.util
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


ROOT = Path(__file__).resolve().parents[1]
RUNNER = ROOT / "tests" / "support" / "keras_suite" / "own_tests.py"
KNOWN = ROOT / "ci" / "keras_own.toml"
TESTS_A_JOB = 25
MEMORY = 6 << 30
"""Bytes of private memory of one process: a test whose memory grows without end shall fail."""
SILENCE_S = 180.0
"""A job that begins and ends no test for so long hangs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test in one process."""

    outcome: str
    why: str = ""
    fits: bool = False


def main() -> int:
    """Run the tests that the command line names; return the exit code."""
    options = _options()
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))  # of this process and its children
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        count = [
            test
            for module in _modules(options.patterns)
            for test, outcome in _plain(module, folder / "plain" / module).items()
            if outcome.outcome == "passed" and outcome.fits
        ]
        print(f"keras_own: {len(count)} tests call fit and pass with plain Keras", flush=True)
        complaints = 0
        for workers in options.workers:
            outcomes = _under_holdfast(count, workers, folder / f"workers-{workers}")
            short = {test.removeprefix("keras.src."): found for test, found in outcomes.items()}
            passed = sum(found.outcome == "passed" for found in outcomes.values())
            print(f"keras_own: -n {workers}: {passed} of {len(outcomes)} passed", flush=True)
            for sentence in differences(
                short, known[f"workers-{workers}"], is_whole=not options.patterns
            ):
                print(f"keras_own: -n {workers}: {sentence}", flush=True)
                complaints += 1
    return 1 if complaints or not count else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="such as 'callbacks.*'")
    parser.add_argument("--workers", type=int, action="append", help="one and two by default")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave all files here")
    options = parser.parse_args()
    options.workers = options.workers or [1, 2]
    options.keep = options.keep and options.keep.resolve()
    return options


def _modules(patterns: list[str]) -> Iterator[str]:
    """Yield the test modules of the installed Keras that speak of ``fit``."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent / "src"
    for path in sorted(source.rglob("*_test.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        chosen = not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        if chosen and ".fit(" in path.read_text(encoding="utf-8"):
            yield f"keras.src.{name}"


def _plain(module: str, folder: Path) -> dict[str, Outcome]:
    """Return the outcomes of a module's tests with plain Keras."""
    if not folder.exists():
        _run([sys.executable, str(RUNNER)], [module], folder)
    (outcomes,) = _outcomes(folder) or [{}]
    return outcomes


def _under_holdfast(tests: list[str], workers: int, folder: Path) -> dict[str, Outcome]:
    """Return what became of each test in jobs of so many workers."""
    outcomes: dict[str, Outcome] = {}
    numbers = itertools.count(1)
    for begin in range(0, len(tests), TESTS_A_JOB):
        rest = tests[begin : begin + TESTS_A_JOB]
        while rest:
            job = folder / f"{next(numbers):03}"
            run_dir = job / "run"
            command = [
                "holdfast", "run", "-n", str(workers), "--microbatches", str(workers),
                "--threads", "1", "--max-restarts", "0", "--run-dir", str(run_dir), str(RUNNER),
            ]  # fmt: skip
            last_line = _run(command, rest, job)
            found = on_all_workers(_outcomes(job), workers)
            if not any(test in found for test in rest):
                found[rest[0]] = Outcome("failed", "not begun")
            for test, outcome in list(found.items()):
                if outcome.outcome != "begun":
                    outcomes[test] = outcome
                elif test == rest[0]:
                    outcomes[test] = Outcome("failed", f"ended the job: {last_line}")
                else:  # perhaps one before it has ended the job: let it begin the next one
                    del found[test]
            rest = [test for test in rest if test not in found]
            done = sum(outcome.outcome == "passed" for outcome in outcomes.values())
            print(f"keras_own: -n {workers}: {done} of {len(outcomes)} passed", flush=True)
    return outcomes


def _run(command: list[str], tests: list[str], folder: Path) -> str:
    """Run the tests in a folder of their own, until no test comes on; return the last line.

    What a job says of itself comes before the last line of its script.
    """
    results = folder / "results"
    results.mkdir(parents=True)
    order = folder / "order.json"
    order.write_text(json.dumps(tests), encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, str(order), str(results)],
            cwd=work,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _wait(process, results)
    lines = (folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if line.startswith("holdfast: ")] or lines
    return said[-1] if said else ""


def _wait(process: subprocess.Popen[bytes], results: Path) -> None:
    """Wait for the end of a process, and end it if it hangs: once politely, then at once."""
    seen, since, signals = 0, time.monotonic(), [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        size = sum(path.stat().st_size for path in results.iterdir())
        if size != seen:
            seen, since = size, time.monotonic()
        elif time.monotonic() - since > SILENCE_S and signals:
            process.send_signal(signals.pop(0))
            since = time.monotonic() - SILENCE_S + 30.0


def _outcomes(folder: Path) -> list[dict[str, Outcome]]:
    """Return what each process has noted, the newest note for each test."""
    found = []
    for path in sorted((folder / "results").glob("*.jsonl")):
        notes: dict[str, Outcome] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            test = fields.pop("test")
            notes[test] = Outcome(**fields)
        found.append(notes)
    return found


def on_all_workers(processes: list[dict[str, Outcome]], workers: int) -> dict[str, Outcome]:
    """Return for each test what became of it: the worst that any worker has noted."""
    together: dict[str, Outcome] = {}
    for test in dict.fromkeys(test for notes in processes for test in notes):
        noted = [notes[test] for notes in processes if test in notes]
        others = [outcome for outcome in noted if outcome.outcome != "passed"]
        if others:
            together[test] = min(others, key=lambda outcome: outcome.outcome == "begun")
        else:
            together[test] = noted[0] if len(noted) >= workers else Outcome("begun")
    return together


def differences(
    outcomes: dict[str, Outcome], known: dict[str, str], *, is_whole: bool
) -> Iterator[str]:
    """Yield a sentence for each test that is not as the known differences say.

    They may only become fewer: a test of the list that passes is named, and one that has not
    run too if ``is_whole``, that is if all tests were to run.
    """
    failed = {test: found for test, found in outcomes.items() if found.outcome != "passed"}
    for test, found in failed.items():
        if test not in known:
            yield f"FAILED {test}: {found.why}"
    for test in known:
        if test in outcomes and test not in failed:
            yield f"passes, so take it off the list: {test}"
        elif is_whole and test not in outcomes:
            yield f"does not count any more, so take it off the list: {test}"


if __name__ == "__main__":
    sys.exit(main())
