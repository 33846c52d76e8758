"""Jobs of a script that a test has as text."""

from __future__ import annotations

from pathlib import Path

from holdfast.testing import JobRequest, JobRun, start_job


def train_text(text: str, directory: Path, *faults: str, options: tuple[str, ...] = ()) -> JobRun:
    """Run ``text`` as ``train.py`` of ``directory`` on two workers of a thread each."""
    script = directory / "train.py"
    script.write_text(text)
    request = JobRequest(
        script=script,
        run_dir=directory / "run",
        workers=2,
        faults=faults,
        options=("--threads", "1", *options),
        directory=directory,
    )
    with start_job(request, timeout_s=300) as running:
        return running.wait()
