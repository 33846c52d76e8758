"""Slurm's programs, with shell scripts in their place: what they say, and when they hang."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.runtime.batch import sbatch
from holdfast.runtime.batch.sbatch import SlurmRefused, requeue, submit, time_left_s

pytestmark = pytest.mark.process


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _write(programs: Path, name: str, line: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{line}\n")
    (programs / name).chmod(0o755)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("echo 1:30", 90.0),
        ("echo 1-00:00:00", 86_400.0),
        ("echo UNLIMITED", math.inf),
        ("echo", None),
        ("echo 'Invalid job id specified' >&2; exit 1", None),
    ],
)
def test_time_left(programs: Path, line: str, seconds: float | None) -> None:
    _write(programs, "squeue", line)

    assert time_left_s("7") == seconds


def test_filters_of_the_user_hide_no_job(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    _write(programs, "squeue", 'test -z "$SQUEUE_STATES" && echo 1:30')

    assert time_left_s("7") == 90.0


def test_requeue_names_the_job(programs: Path) -> None:
    _write(programs, "scontrol", f'echo "$@" > {programs}/said')

    requeue("7_3")

    assert (programs / "said").read_text() == "requeue 7_3\n"


def test_refusal_is_told(programs: Path) -> None:
    _write(programs, "scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")

    with pytest.raises(SlurmRefused, match="scontrol: Requested operation is presently disabled"):
        requeue("7")


def test_controller_that_does_not_answer_costs_a_bounded_time(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch, "ANSWERS_WITHIN_S", 0.2)
    _write(programs, "scontrol", "exec sleep 600")

    with pytest.raises(SlurmRefused, match="scontrol has not answered"):
        requeue("7")


@pytest.mark.parametrize(("said", "job"), [("12", "12"), ("12;cluster", "12"), ("hello", None)])
def test_submitted_job(programs: Path, said: str, job: str | None) -> None:
    _write(programs, "sbatch", f"cat > {programs}/script; echo '{said}'")

    if job is None:
        with pytest.raises(SlurmRefused, match="said 'hello' and no job id"):
            submit("#!/bin/sh\n")
    else:
        assert submit("#!/bin/sh\n") == job
    assert (programs / "script").read_text() == "#!/bin/sh\n"
