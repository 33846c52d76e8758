"""Reads that fail, and names that come late, at a restore: nothing is thrown away for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, faulty_mount, needs_a_server
from half_a_run import HALF, Begun
from workload import EVEN, Undisturbed, assert_refused, assert_whole, request_of, run_job

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import JobRequest, JobRun

pytestmark = [pytest.mark.mpi, needs_a_server]

PATIENT = Path(__file__).parents[1] / "scripts" / "disks" / "outage.py"
STEP = f"*/step-{HALF.steps:012d}"
RECORD = "*/RUN.json"
WAITS = "cannot be read just now"


def _request(run_dir: Path, patience_s: float) -> JobRequest:
    plain = request_of(EVEN, run_dir, workers=2)
    argv = [*plain.argv, "--outage", str(run_dir / "none"), "--patience", str(patience_s)]
    return replace(plain, script=PATIENT, argv=argv)


def _begun_by_patient(begun: Begun, faulty: FaultyMount) -> Path:
    """Return the run directory on the file system, as that of the patient script."""
    run_dir = begun(faulty)
    directory = RunDirectory(faulty.served / run_dir.name)
    record = directory.load_record()
    assert record is not None
    directory.replace_record(replace(record, script=str(PATIENT.resolve())))
    return run_dir


def _assert_resumed(job: JobRun, sha256: str) -> None:
    """The job went on from the newest step, and trained nothing again."""
    assert_whole(job, EVEN, sha256)
    assert [record["step"] for record in job.events("restored")] == [HALF.steps]
    assert job.report.rejected_checkpoints == ()


@pytest.mark.parametrize(
    ("rules", "is_told"),
    [
        ([Rule(("read",), paths=f"{STEP}/*", error="EIO", last=6)], True),
        extended([Rule(("getattr",), paths=f"{STEP}/MANIFEST.json", error="ENOENT", last=6)], True),
        extended([Rule(("read",), paths=f"{STEP}/*", error="ESTALE", last=6)], True),
        extended([Rule(("open",), paths=f"{STEP}/*", error="ESTALE", last=6)], True),
        extended([Rule(("getattr",), paths=STEP, error="ENOENT", last=6)], True),
        extended([Rule(("getattr",), paths=RECORD, error="ENOENT", last=6)], False),
        extended([Rule(("open",), paths=RECORD, error="ESTALE", last=1)], False),
    ],
    ids=lambda value: f"{value[0].calls[0]} {value[0].error}" if isinstance(value, list) else "",
)
def test_what_cannot_be_read_for_a_while_is_read_later(
    rules: list[Rule], *, is_told: bool, faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    run_dir = _begun_by_patient(begun, faulty)
    faulty.set(*rules)
    job = run_job(_request(run_dir, 60.0))

    assert faulty.struck() == rules[0].last
    _assert_resumed(job, undisturbed(EVEN))
    assert (WAITS in job.stderr) == is_told


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        extended(Rule(("read",), paths="*/step-*", error="ESTALE"), "(ESTALE)"),
        extended(Rule(("read",), paths="*/step-*", error="EIO"), "(EIO)"),
        extended(
            Rule(("getattr",), paths="*/step-*/*", error="ENOENT"), "listed, and yet not found"
        ),
        extended(Rule(("opendir",), paths="*/checkpoints", error="EIO"), "(EIO)"),
    ],
)
def test_what_is_never_read_ends_the_job_and_costs_no_checkpoint(
    rule: Rule, words: str, faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    run_dir = _begun_by_patient(begun, faulty)
    faulty.set(rule)
    ended = run_job(_request(run_dir, 1.0))
    faulty.set()
    job = run_job(_request(run_dir, 1.0))

    assert_refused(ended, ExitCode.STOPPED_EARLY, "nothing is known to be damaged", words)
    assert "--fresh" not in ended.stderr.splitlines()[-1]
    _assert_resumed(job, undisturbed(EVEN))


@pytest.mark.extended  # what cannot be read for a while runs above
def test_host_that_remembers_an_empty_directory_resumes_what_another_one_has_begun(
    faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    """It remembers for seconds that there was no such run, as clients of NFS do."""
    folder = faulty.path.parent
    (folder / "served" / "run").mkdir()
    with faulty_mount(folder, "other", remembers_s=3.0) as other:
        run_dir = other.path / "run"
        for name in ("RUN.json", "lease", "journal.jsonl", "checkpoints"):
            assert not (run_dir / name).exists()
        (folder / "served" / "run").rmdir()
        _begun_by_patient(begun, faulty)
        job = run_job(_request(run_dir, 60.0))

    _assert_resumed(job, undisturbed(EVEN))
