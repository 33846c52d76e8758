from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from configs import worker_config

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.recovery.world import WorkerId
from holdfast.runtime.agent.hosted_worker import GuardHello, HostedLaunch, HostedWorker
from holdfast.runtime.options.worker_config import WorkerConfig

CONFIG = worker_config(
    0,
    (0,),
    run_id="run",
    generation=0,
    microbatches=4,
    seed=1,
    argv=("--fast",),
    key_file=KeyFile("/keys/of the run", "00112233aabbccdd"),
)


def _launch_message(**changes: Any) -> dict[str, Any]:
    config = {**CONFIG.to_json(), "generation": 3, "workers": [4, 7]}
    message = {"kind": "launch", "config": json.loads(json.dumps(config))}
    return {**message, **changes}


def test_launch_tells_each_worker_who_it_is() -> None:
    launch = HostedLaunch.of(_launch_message(env={"A": "1"}))

    config = launch.config_of(WorkerId(7))

    assert launch.environment == {"A": "1"}
    assert config == dataclasses.replace(
        CONFIG, worker=WorkerId(7), generation=3, workers=(WorkerId(4), WorkerId(7))
    )
    assert WorkerConfig.decode(config.encode()) == config


@pytest.mark.parametrize(
    "changes",
    [{"config": []}, {"config": {}}, {"config": {"threads": 1}}, {"env": 3}],
)
def test_incomplete_launch_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        HostedLaunch.of(_launch_message(**changes))


def test_configuration_without_its_workers_is_refused() -> None:
    fields = json.loads(CONFIG.encode())
    del fields["workers"]

    with pytest.raises(KeyError, match="workers"):
        WorkerConfig.decode(json.dumps(fields))


def test_guard_must_say_everything() -> None:
    hello = {"rank": 1, "generation": 2, "cwd": "/", "env": {"PMIX_RANK": "1"}}
    assert GuardHello.of(hello) == GuardHello(1, 2, "/", {"PMIX_RANK": "1"})

    for name in hello:
        with pytest.raises(KeyError):
            GuardHello.of({key: value for key, value in hello.items() if key != name})


def test_worker_that_is_killed_before_it_exists_is_condemned() -> None:
    hosted = HostedWorker(WorkerId(4), HostedLaunch.of(_launch_message()))
    assert not hosted.is_condemned

    hosted.kill("killed by the supervisor")
    hosted.kill("another reason")

    assert hosted.is_condemned
    assert not hosted.is_running
    event = hosted.exit_event(-9, "killed by the supervisor")
    assert (event["worker"], event["generation"], event["phase"]) == (4, 3, "starting")
    hosted.close()
    hosted.close()
