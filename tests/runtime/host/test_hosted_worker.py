"""One worker as its agent holds it: how it begins, what it is killed for, and its end."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config

from holdfast.checkpoint.signature import KeyFile
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink, HostedLaunch, HostedWorker
from holdfast.runtime.system.channel import FDS, Channel, pair
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import Phase

BOUND_S = 90.0
CONFIG = worker_config(
    0,
    (0,),
    run_id="run",
    generation=0,
    microbatches=4,
    seed=1,
    argv=("--fast",),
    key_file=KeyFile(Path("/keys/of the run"), "00112233aabbccdd"),
)


def _launch_message(**changes: Any) -> dict[str, Any]:
    config = {**to_plain(CONFIG), "generation": 3, "workers": [4, 7]}
    message = {"kind": "launch", "config": json.loads(json.dumps(config))}
    return {**message, **changes}


def test_launch_tells_each_worker_who_it_is() -> None:
    launch = HostedLaunch.of(_launch_message(env={"A": "1"}))

    config = launch.config_of(WorkerId(7))

    assert launch.environment == {"A": "1"}
    assert config == dataclasses.replace(
        CONFIG, worker=WorkerId(7), generation=3, workers=(WorkerId(4), WorkerId(7))
    )


@pytest.mark.parametrize(
    "changes",
    [{"config": []}, {"config": {}}, {"config": {"threads": 1}}, {"env": 3}],
)
def test_incomplete_launch_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        HostedLaunch.of(_launch_message(**changes))


def test_guard_must_say_everything() -> None:
    hello = {"rank": 1, "generation": 2, "cwd": "/", "env": {"PMIX_RANK": "1"}}
    assert GuardHello.of(hello) == GuardHello(1, 2, "/", {"PMIX_RANK": "1"})

    for name in hello:
        with pytest.raises(KeyError):
            GuardHello.of({key: value for key, value in hello.items() if key != name})


def test_worker_that_is_killed_before_it_exists_is_condemned() -> None:
    hosted = HostedWorker(WorkerId(4), HostedLaunch.of(_launch_message()))
    assert not hosted.is_condemned

    hosted.kill("killed with its launch")
    hosted.kill("another reason")

    assert hosted.is_condemned
    assert not hosted.is_running
    event = hosted.exit_event(-9, "killed with its launch")
    assert (event["worker"], event["generation"], event["phase"]) == (4, 3, "starting")
    hosted.close()
    hosted.close()


@pytest.fixture
def hosted() -> Iterator[HostedWorker]:
    made = HostedWorker(WorkerId(7), HostedLaunch.of(_launch_message()))
    yield made
    made.close()
    os.close(made.stdout_fd)
    os.close(made.stderr_fd)


def _their_end(hosted: HostedWorker) -> Channel:
    return Channel.adopt(os.dup(hosted.their_fds[0]))


@pytest.mark.parametrize(
    ("has_left", "status", "is_clean"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)
def test_end_is_clean_only_if_the_worker_has_left_and_then_ended_well(
    hosted: HostedWorker, status: int, *, has_left: bool, is_clean: bool
) -> None:
    hosted.has_left = has_left

    assert hosted.exit_event(status, "")["clean"] is is_clean


def test_worker_that_was_killed_because_it_did_not_leave_has_done_its_work(
    hosted: HostedWorker,
) -> None:
    hosted.limit = "leaving"

    assert hosted.exit_event(-9, "")["clean"] is True


def test_end_has_the_evidence_that_the_page_holds(hosted: HostedWorker) -> None:
    hosted.page.phase = Phase.SAVING
    hosted.page.commit(40)
    hosted.page.begin_work(41, 2, array("q", [5, 17]).tobytes(), is_validation=False)

    event = hosted.exit_event(-9, "signal SIGKILL")

    assert (event["step"], event["phase"], event["generation"]) == (40, "saving", 3)
    work = {"step": 41, "microbatch": 2, "count": 2, "ids": (5, 17), "is_validation": False}
    assert event["samples"] == work
    assert (event["limit"], event["fenced"], event["collateral"]) == (None, False, False)
    assert (event["stderr"], event["core"]) == ([], None)


@pytest.mark.parametrize(
    ("limit", "how"),
    [
        ("heartbeat", "of silence"),
        ("stall", "at one piece of work"),
        ("failed", "in its script, which has caught the error of its training: ValueError: odd"),
    ],
)
def test_fenced_worker_is_told_with_its_limit_and_is_no_victim_of_others(
    hosted: HostedWorker, limit: str, how: str
) -> None:
    hosted.note({"kind": "training_failed", "error": "ValueError: odd"})

    hosted.fence(limit, 12.5)

    assert hosted.write_off()["cause"].startswith(f"fenced after 12.50 s {how}; process")
    event = hosted.exit_event(-9, "")
    assert (event["limit"], event["fenced"], event["collateral"]) == (limit, True, False)


def test_worker_that_was_killed_with_others_died_of_nothing_of_its_own(
    hosted: HostedWorker,
) -> None:
    hosted.kill("generation 4 begins")
    hosted.kill("guard lost")

    event = hosted.write_off()

    assert event["cause"].startswith("generation 4 begins; process None does not end")
    assert (event["limit"], event["fenced"], event["collateral"]) == ("unkillable", False, True)


def test_reports_on_the_script_concern_the_agent_alone(hosted: HostedWorker) -> None:
    assert hosted.note({"kind": "training", "number": 2})
    assert hosted.note({"kind": "at_end"})
    assert not hosted.note({"kind": "checkpoint", "step": 5})
    assert not hosted.note({})

    assert (hosted.trainings, hosted.is_at_end) == (2, True)


def test_worker_begins_where_its_guard_stands_and_with_the_ranks_environment(
    hosted: HostedWorker,
) -> None:
    ours, theirs = pair()
    read, write = os.pipe()
    hello = GuardHello(1, 3, "/work", {"RANK": "1", "A": "guard"}, (write,))

    hosted.join_guard(GuardLink(ours, None), hello, {"A": "launch", "B": "launch"})

    worker = _their_end(hosted)
    (begin,) = worker.drain()
    (connection,) = begin[FDS]
    assert begin["env"] == {"RANK": "1", "A": "guard", "B": "launch"}
    assert (begin["kind"], begin["cwd"]) == ("begin", "/work")
    hosted.close()
    os.write(connection, b"from the rank")
    os.close(connection)
    assert os.read(read, 100) + os.read(read, 100) == b"from the rank"  # no end is left open
    os.close(read)
    worker.close()
    theirs.close()


def test_rank_is_taken_from_the_guard_on_unless_no_process_will_ever_run(
    hosted: HostedWorker,
) -> None:
    ours, theirs = pair()
    assert not hosted.occupies_a_rank

    hosted.join_guard(GuardLink(ours, None), GuardHello(1, 3, "/", {}), {})
    assert hosted.occupies_a_rank
    assert not hosted.is_running
    hosted.kill("killed with its launch")

    assert not hosted.occupies_a_rank
    hosted.pid = 4711  # it was forked meanwhile, and takes its rank until it has ended
    assert hosted.occupies_a_rank
    theirs.close()


def test_answer_to_a_worker_that_is_gone_fails_nothing(hosted: HostedWorker) -> None:
    hosted.close()

    hosted.answer({"kind": "leave"})

    assert hosted.is_buried


def test_guard_that_is_turned_away_keeps_no_connection_open() -> None:
    read, write = os.pipe()

    GuardHello(0, 1, "/", {}, (write,)).close()

    assert os.read(read, 1) == b""
    os.close(read)


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "why", "status", "cause"),
    [
        ("exit 0", None, 0, "exit 0 without leaving"),
        ("exit 7", None, 7, "exit 7"),
        ("kill -KILL $$", None, -9, "signal SIGKILL"),
        ("sleep 600", "guard lost", -9, "guard lost"),
    ],
    ids=["leaves nobody", "fails", "is killed by a stranger", "is killed by its agent"],
)
def test_end_of_a_process_is_told_with_its_cause(
    hosted: HostedWorker, script: str, why: str | None, status: int, cause: str
) -> None:
    if why is not None:
        hosted.kill(why)  # before there is a process
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)

    end = hosted.join_process(process.pid)
    assert select.select([end], [], [], BOUND_S)[0]
    event = hosted.reap()

    process.returncode = status  # the agent has waited for it
    assert (event["status"], event["cause"], event["clean"]) == (status, cause, False)
    assert event["peak_bytes"] > 0
    assert isinstance(event["core"], int)
