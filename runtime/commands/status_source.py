"""The sources of a status: record, lease and journal of a run directory, and the agent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.commands.agent_question import AgentQuestion
from holdfast.runtime.commands.job_status import (
    AgentAnswer,
    Ending,
    JobStatus,
    job_status,
    newest_job,
)
from holdfast.runtime.commands.lease_holder import Life, find_life
from holdfast.runtime.commands.sound_records import sound_records
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.journal import JournalReader, Record, completed_step
from holdfast.runtime.run.no_run import refuse_no_job
from holdfast.runtime.run.own_file import ForeignFile
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.transient import refusal


class StatusSource:
    """Looks at one run, once or again and again; reading changes nothing.

    Raises:
        UsageError: the directory holds no run, or its files cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        self._directory = RunDirectory(run_dir)
        self._reader = JournalReader(self._directory.journal_path)
        self._question = AgentQuestion(self._directory)
        self._records: list[Record] = []

    def look(self, wall_s: float) -> JobStatus:
        """Return how the newest job stands now, at ``wall_s`` seconds since 1970.

        Raises:
            UsageError: the directory holds no run, or its files cannot be read.
        """
        self._check()
        answer = self._question.ask()
        life, words = find_life(self._directory)
        self._read()  # after the look at the processes: the last record may tell of their end
        ending = ending_of(newest_job(self._records), life, words)
        if self._question.is_silent:
            ending = Ending(f"{ending.outcome}; its agent does not answer", ending.is_over)
        found = None if answer is None else AgentAnswer.of(answer)
        return job_status(self._records, ending, found, (time.monotonic(), wall_s))

    def close(self) -> None:
        """Leave the job alone."""
        self._question.close()

    def _check(self) -> None:
        refuse_no_job(self._directory.path)
        self._directory.load_record()  # one that makes no sense is refused

    def _read(self) -> None:
        path, journal = self._directory.path, self._directory.journal_path
        try:
            self._records += sound_records(self._reader.read())
        except FileNotFoundError as error:
            raise UsageError(f"no job has started in {path} yet") from error
        except ForeignFile as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            sentence = f"{journal} cannot be read: {error.strerror}"
            raise refusal(journal, error, sentence) from error
        if not self._records:
            raise UsageError(f"{journal} holds no records; no job has started in {path} yet")


def ending_of(job: Sequence[Record], life: Life, words: str) -> Ending:
    """Return how a job stands, in words; ``words`` say why its supervisor is out of reach."""
    if life in _RUNNING:
        return Ending(_RUNNING[life].format(words), is_over=False)
    ended = [record for record in job if record["event"] == "job_ended"]
    if ended:
        code, reason = ended[-1]["exit_code"], ended[-1]["reason"]
        return Ending(f"ended with exit code {code}: {reason}", is_over=True)
    step = completed_step(job)
    if step is not None:
        lost = ", after its supervisor was lost" if life is Life.GONE else ""
        return Ending(f"completed step {step}{lost}", is_over=True)
    return Ending(_WITHOUT_END[life].format(words), is_over=life is not Life.UNKNOWN)


_RUNNING = {
    Life.SUPERVISED: "running",
    Life.ORPHANED: "running, but {}",
    Life.ALONE: "running without `holdfast run`, which nobody supervises",
}
_WITHOUT_END = {
    Life.ELSEWHERE: "{}",
    Life.ENDED: "over, and its journal does not say how; go on with `holdfast run`",
    Life.GONE: "lost with its supervisor; go on with `holdfast run`",
    Life.UNKNOWN: "running, or lost: {}",
}
"""How a job stands whose journal tells no end."""
