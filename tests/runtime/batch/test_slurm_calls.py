"""The calls of Slurm's programs, with programs of ours in their place."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.runtime.batch import schedulers
from holdfast.runtime.batch.schedulers import (
    BatchNodes,
    SlurmRefused,
    bring_back,
    nodes_of,
    requeue,
    time_left_s,
)

BATCH = {
    "ENVIRONMENT": "BATCH",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "1(x3)",
}
WHOLE = BatchNodes("n1", ("n1", "n2", "n3"))
LOST = BatchNodes("n1", ("n2", "n3"))
OVER = BatchNodes("n1", (), is_running=False)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _write(programs: Path, name: str, line: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{line}\n")
    (programs / name).chmod(0o755)


@pytest.mark.process
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


@pytest.mark.process
def test_filters_of_the_user_hide_no_job(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    _write(programs, "squeue", 'test -z "$SQUEUE_STATES" && echo 1:30')

    assert time_left_s("7") == 90.0


@pytest.mark.process
def test_requeue_names_the_job(programs: Path) -> None:
    _write(programs, "scontrol", f'echo "$@" > {programs}/said')

    requeue("7_3")

    assert (programs / "said").read_text() == "requeue 7_3\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("users", "excluded"), [("(null)", "n3"), ("n[7-8]", "n7,n8,n3"), ("n3", "n3")]
)
def test_requeue_after_a_loss_asks_for_other_nodes_instead(
    programs: Path, users: str, excluded: str
) -> None:
    _write(programs, "squeue", f"echo '{users}|gpu|(null)|normal|2:00|[fast|big]'")
    _write(programs, "sbatch", f'echo "$@" > {programs}/asked')
    _write(programs, "scontrol", f'test -z "$1" && cat > {programs}/said')

    requeue("7", ["n3"], nodes=2)

    assert (programs / "asked").read_text().split() == [
        *("--test-only", "--nodes=2", f"--exclude={excluded}"),
        *("--partition=gpu", "--qos=normal", "--time=2:00", "--constraint=[fast|big]"),
    ]
    assert (programs / "said").read_text().splitlines() == [
        "requeue 7",
        f"update JobId=7 ExcNodeList={excluded}",
    ]


@pytest.mark.process
def test_requeued_job_that_needs_the_lost_node_does_not_exclude_it(programs: Path) -> None:
    """Slurm would hold it for good, even when the node is back."""
    _write(
        programs,
        "squeue",
        "case $* in *%x*) echo '(null)|gpu|(null)|(null)|2:00|(null)';; "
        "*) echo 'n1|n[1-2]|RUNNING';; esac",
    )
    _write(programs, "sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    _write(programs, "scontrol", f'echo "$@" >> {programs}/said; cat >> {programs}/said')

    requeue("7", ["n3"], nodes=3)

    assert (programs / "said").read_text() == "requeue 7\n"


@pytest.mark.process
@pytest.mark.parametrize(("state", "is_asked_again"), [("RUNNING", True), ("PENDING", False)])
def test_job_is_requeued_even_if_slurm_excludes_no_node(
    programs: Path, state: str, *, is_asked_again: bool
) -> None:
    terms = "n9|gpu|(null)|(null)|2:00|(null)"
    _write(programs, "squeue", f"case $* in *%x*) echo '{terms}';; *) echo 'n1|n1|{state}';; esac")
    _write(programs, "sbatch", "true")
    _write(programs, "scontrol", f'test -n "$1" && echo "$@" > {programs}/said')

    requeue("7", ["n3"])

    assert (programs / "said").exists() == is_asked_again


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("n1|n[1-3]|RUNNING", WHOLE),
        ("n1|n[2-3]|RUNNING", LOST),
        ("n/a||PENDING", BatchNodes("n/a", (), is_running=False)),
    ],
)
def test_nodes_of_a_job_are_those_that_slurm_says(
    programs: Path, line: str, nodes: BatchNodes
) -> None:
    _write(programs, "squeue", f"echo '{line}'")

    assert nodes_of("7") == nodes


@pytest.mark.process
def test_refusal_is_told(programs: Path) -> None:
    _write(programs, "scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")

    with pytest.raises(SlurmRefused, match="scontrol: Requested operation is presently disabled"):
        requeue("7")


@pytest.mark.process
def test_controller_that_does_not_answer_costs_a_bounded_time(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "ANSWERS_WITHIN_S", 0.2)
    _write(programs, "scontrol", "exec sleep 600")

    with pytest.raises(SlurmRefused, match="scontrol has not answered"):
        requeue("7")


def orders(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    answers: list[BatchNodes | None],
    *,
    requeues: bool = True,
) -> list[str]:
    """Return what Slurm is told by a host that has lost the node of its batch script."""
    told = programs / "told"
    _write(programs, "scontrol", f'echo "$@" >> {told}' if requeues else "exit 1")
    _write(programs, "scancel", f'echo cancel "$@" >> {told}')
    monkeypatch.setattr("signal.signal", lambda *_: None)
    coming = iter(answers)

    def ask(job: str) -> BatchNodes:
        answer = next(coming)
        if answer is None:
            raise SlurmRefused(f"squeue has not answered for {job}")
        return answer

    bring_back(environ, ask, lambda _: None)
    return told.read_text().splitlines() if told.exists() else []


@pytest.mark.process
@pytest.mark.parametrize(
    ("answers", "requeues", "expected"),
    [
        ([WHOLE, None, WHOLE, LOST], True, ["requeue 7"]),
        ([LOST], False, ["cancel 7"]),
        ([WHOLE, OVER], True, []),
        ([WHOLE] * 240, True, []),
    ],
    ids=["lost", "no requeue on this site", "ended", "another end of the head"],
)
def test_job_comes_back_when_slurm_has_given_up_the_node_of_its_script(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[BatchNodes | None],
    expected: list[str],
    *,
    requeues: bool,
) -> None:
    assert orders(programs, monkeypatch, BATCH, answers, requeues=requeues) == expected


@pytest.mark.parametrize(
    "environ", [{}, {**BATCH, "ENVIRONMENT": "INTERACTIVE"}, {"PBS_JOBID": "8.head"}]
)
def test_nobody_is_asked_outside_of_a_batch_job_of_slurm(
    programs: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    assert orders(programs, monkeypatch, environ, []) == []
