"""``holdfast demo``: its first words, and which promises it looks at; ci/demo runs it whole."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest
from commands import holdfast_code
from told_run import told_lines

from holdfast.recovery.event import WorkerExited
from holdfast.runtime.commands.summary import EpochReport, Report, summarize
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.events import Recovery, Relaunch

EPOCHS = tuple(EpochReport(n, 10 * n, 1280, True, {}, {}, 1.0) for n in range(1, 13))
WELL = dataclasses.replace(
    summarize([]), exit_code=0, reason="done", epochs=EPOCHS, final_sha256="ab"
)
DISTURBED = dataclasses.replace(
    WELL,
    failures=tuple(WorkerExited(worker, "signal SIGKILL") for worker in (0, 2, 1, 3)),
    recoveries=tuple(Recovery(1, 30, [lost], [1, 3]) for lost in (0, 2)),
    relaunches=(Relaunch("all died", [4, 5, 6, 7], 1),),
)


def test_demonstration_says_what_comes_before_it_trains_and_compares_the_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []
    digests = {4: "ab", 1: "ab"}

    def train(place: Path, name: str, workers: int, faults: tuple[str, ...] = ()) -> Report:
        begun.append(capsys.readouterr().out)
        (place / name).mkdir()
        text = "".join(json.dumps(line) + "\n" for line in told_lines())
        (place / name / "journal.jsonl").write_text(text)
        return dataclasses.replace(DISTURBED if faults else WELL, final_sha256=digests[workers])

    monkeypatch.setattr("holdfast.runtime.commands.demo._train", train)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number, digests[1] in enumerate(("ab", "cd")):
        code = holdfast_code("demo", *["--keep"] * number)

        assert code == (ExitCode.PROGRAM_FAILED if number else ExitCode.DONE)
        assert begun[2 * number].startswith("A small network learns to read digits with 4 workers")
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("not so: the final bytes" if number else "4 of 4 workers died")
        assert len(list(tmp_path.glob("holdfast-demo-*/disturbed"))) == number
