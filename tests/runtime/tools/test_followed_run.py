"""A run is followed to its end, whatever ends its jobs; shell scripts stand in for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from holdfast.runtime.tools import followed_run
from holdfast.runtime.tools.followed_run import FollowedRun, RunTerms, follow_run
from holdfast.runtime.tools.strike import Agenda, parse_plan

pytestmark = pytest.mark.process

BOUND_S = 90.0
STANDS = "say launch; exec sleep 600"
GOES_ON = "trap 'exit 0' CONT; say launch; while :; do sleep 0.05; done"
"""A job that comes to its end as soon as it was stopped and woken up."""
_WORDS = """
mkdir -p {0}
say() {{ echo '{{"event": "'$1'"}}' >> {0}/journal.jsonl; }}
step() {{ echo '{{"event": "step", "step": '$1'}}' >> {0}/journal.jsonl; }}
"""

Follow: TypeAlias = Callable[..., FollowedRun]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Follow a run whose n-th job is the n-th script; another job would be an error."""

    def follow_scripts(
        *scripts: str, strikes: str = "", hang_after_s: float = BOUND_S
    ) -> FollowedRun:
        coming = iter(scripts)

        def command(run_dir: Path, _arguments: object) -> tuple[str, ...]:
            return ("sh", "-c", _WORDS.format(run_dir) + next(coming))

        monkeypatch.setattr(followed_run, "run_command", command)
        terms = RunTerms(("train.py",), tmp_path / "job", hang_after_s)
        return follow_run(terms, Agenda(parse_plan(strikes) if strikes else ()))

    return follow_scripts


def test_job_that_ends_well_is_the_only_one(follow: Follow) -> None:
    done = follow("say launch; say completed")

    assert done.exit_codes == (0,)
    assert [record["event"] for record in done.records] == ["launch", "completed"]
    assert (done.failure, done.evidence, done.leftovers) == (None, "", ())
    assert done.began < done.ended


def test_job_that_was_stopped_early_is_started_again(follow: Follow) -> None:
    done = follow("step 1; exit 75", "step 2")

    assert done.exit_codes == (75, 0)
    assert [record["step"] for record in done.records] == [1, 2]


def test_failed_job_ends_the_run_with_its_last_records_as_evidence(
    follow: Follow, tmp_path: Path
) -> None:
    done = follow("for n in $(seq 20); do step $n; done; echo no memory >&2; exit 1")

    assert done.failure == "the job ended with exit code 1"
    head, _, records = done.evidence.partition("the end of the journal:\n")
    assert head == "processes:\n"
    assert re.findall(r'"step": (\d+)', records) == [str(number) for number in range(9, 21)]
    assert (tmp_path / "job" / "stderr.txt").read_text() == "no memory\n"


def test_directory_of_another_job_is_asked_for_again_after_a_pause(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "_OWNED_PAUSE_S", 0.15)

    done = follow("exit 76", "exit 0")

    assert done.exit_codes == (76, 0)
    assert done.ended - done.began >= 0.15


class _ClockFromSleep:
    """A clock that stands still until a job has become ``sleep``, however long that takes."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._goes = False

    def monotonic(self) -> float:
        """Return the seconds, as ``time.monotonic`` does."""
        self._goes = self._goes or any(
            (job.name(), job.status()) == ("sleep", psutil.STATUS_SLEEPING)
            for job in psutil.Process().children()
        )
        return time.monotonic() if self._goes else self._begin


def test_run_without_a_new_record_for_too_long_is_ended(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "time", _ClockFromSleep())

    done = follow(STANDS, hang_after_s=0.25)

    assert done.exit_codes == ()
    assert re.fullmatch(r"nothing has moved in the journal for \d+ s", str(done.failure))
    assert re.search(r"^  \d+ sleep S$", done.evidence, re.MULTILINE)


def test_what_a_job_leaves_behind_is_named_and_removed(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "ENDS_WITHIN_S", 0.1)

    done = follow('echo x > "$TMPDIR/forgotten"; sleep 600 & exit 0')

    process, file = done.leftovers
    assert re.fullmatch(r"process \d+ (sleep|sh)", process)
    assert file.endswith("/tmp/forgotten")
    assert not Path(file).exists()


def test_supervisor_that_a_strike_has_killed_is_replaced(follow: Follow) -> None:
    done = follow(STANDS, "say completed", strikes="kill supervisor on launch")

    assert done.exit_codes == (-9, 0)
    assert [str(struck.strike) for struck in done.struck] == ["kill supervisor on launch"]
    assert done.struck[0].has_hit


def test_job_that_was_stopped_as_a_whole_is_woken_when_it_keeps_its_directory(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "SUSPENDED_FOR_S", -1.0)

    done = follow(GOES_ON, "exit 76", strikes="stop supervisor on launch")

    assert done.exit_codes == (76, 0)
    assert done.failure is None


def test_stopped_supervisor_is_woken_at_the_end_of_a_run_that_went_on_without_it(
    follow: Follow,
) -> None:
    done = follow(GOES_ON, "say completed", strikes="stop supervisor on launch")

    assert done.exit_codes == (0,)
    assert done.leftovers == ()


def test_strike_whose_moment_never_came_is_told_as_missed(follow: Follow) -> None:
    done = follow("step 7", strikes="kill agent on failure")

    (struck,) = done.struck
    assert (struck.victim, struck.step) == (None, 7)


@pytest.mark.parametrize("disk", [None, Path("/mnt/small")], ids=["own folder", "small disk"])
def test_run_directory_lies_on_the_small_disk_if_there_is_one(disk: Path | None) -> None:
    terms = RunTerms((), Path("/out/struck"), 1.0, disk)

    assert terms.run_dir == (disk or Path("/out/struck")) / "run"
