"""What a request is told that differs from the job that lives in its run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor.job_run import attach
from holdfast.runtime.supervisor.takeover import another_job

SCRIPT = Path("/a/slow.py")
RUN = Path("/my runs/1")


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (JobOptions(SCRIPT, RUN, fresh=True), "and which --fresh would set aside; "),
        (JobOptions(Path("/b/train.py"), RUN), "and which runs another script, /a/slow.py; "),
        (
            JobOptions(SCRIPT, RUN, argv=("--foo", "a b")),
            "(its: --epochs 3; asked for: --foo 'a b'); ",
        ),
        (JobOptions(SCRIPT, RUN), "(its: --epochs 3; asked for: none); "),
    ],
)
def test_difference_is_named_with_the_command_that_goes_on(
    asked: JobOptions, difference: str
) -> None:
    its = [False, str(SCRIPT), "--epochs", "3"]

    text = another_job(RunDirectory(RUN), its, asked)

    assert difference in text
    assert "take the job over with `holdfast attach '/my runs/1'`" in text


def test_attach_to_a_job_that_has_completed_says_so(tmp_path: Path) -> None:
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.record("completed", step=325)
    journal.close()

    with pytest.raises(UsageError, match=r"no job lives in .*completed step 325: look at it with"):
        attach(tmp_path)
