"""The calls of Slurm's own programs; each has a time limit, and none may stop a job.

A controller that is down or busy lets its clients wait for minutes.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Sequence

from holdfast.runtime.batch.duration import clock_s
from holdfast.runtime.system.helper_process import answer_of

ANSWERS_WITHIN_S = 8.0
_SUBMITS_WITHIN_S = 60.0


class SlurmRefused(Exception):
    """A program of Slurm is missing, does not answer, or says no."""


def time_left_s(job_id: str) -> float | None:
    """Return the seconds until a job's limit, infinite without one, None if Slurm is silent."""
    try:
        said = _call(("squeue", "-h", "-j", job_id, "-o", "%L"))
    except SlurmRefused:
        return None
    return math.inf if said == "UNLIMITED" else clock_s(said)


def requeue(job_id: str) -> None:
    """Have a job begin again, under the same id; its processes are ended soon.

    Raises:
        SlurmRefused: Slurm has not done so; the text gives the reason.
    """
    _call(("scontrol", "requeue", job_id))


def submit(script: str, arguments: Sequence[str] = ()) -> str:
    """Submit a batch script; return the id of its job.

    Raises:
        SlurmRefused: Slurm has not taken it; the text gives the reason.
    """
    said = _call(("sbatch", "--parsable", *arguments), script, _SUBMITS_WITHIN_S)
    job = re.match(r"[0-9]+", said)
    if job is None:
        raise SlurmRefused(f"sbatch said {said!r} and no job id")
    return job[0]


def _call(command: Sequence[str], text: str = "", within_s: float | None = None) -> str:
    within_s = within_s or ANSWERS_WITHIN_S
    # The user's wishes for squeue, such as SQUEUE_STATES, would hide this job.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = answer_of(command, within_s, environ, text)
    except subprocess.TimeoutExpired as error:
        raise SlurmRefused(f"{command[0]} has not answered for {within_s:.0f} s") from error
    except OSError as error:
        raise SlurmRefused(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode}"
        raise SlurmRefused(f"{command[0]}: {said}")
    return done.stdout.strip()
