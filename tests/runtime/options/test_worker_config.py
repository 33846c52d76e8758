"""What a worker is told at its start: a launch that makes no sense is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.codec import from_plain, to_plain


def test_spares_are_the_workers_beyond_the_capacity() -> None:
    config = worker_config(4, (4, 5, 6), capacity=2, run_dir=Path("/scratch/run"))

    assert (config.capacity, len(config.workers) - config.capacity) == (2, 1)
    assert config.run_dir == Path("/scratch/run")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": [0, 0]}, r"workers are \(0, 0\)"),
        ({"generation": -1}, "generation is -1"),
        ({"generation": 1 << 63}, f"generation is {1 << 63}"),
        ({"record": {"run_id": 1}}, r"WorkerConfig\.record\.run_id is 1, not a text"),
        ({"more": 1}, r"WorkerConfig\.more is unknown"),
        ({"history": {"luck": 1}}, r"WorkerConfig\.history\.luck is unknown"),
        ({"options": {}}, r"WorkerConfig\.options\.script is missing"),
        ({"options": "text"}, "options is 'text', not an object"),
        ({"workers": ["0"]}, r"WorkerConfig\.workers\[0\] is '0', not a whole number"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused_with_the_reason(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        from_plain(WorkerConfig, to_plain(worker_config()) | change)


def test_option_that_makes_no_sense_is_refused_in_the_words_that_a_user_knows() -> None:
    fields = to_plain(worker_config())

    with pytest.raises(UsageError, match=r"-n \(workers\) must be at least 1, got 0"):
        from_plain(WorkerConfig, fields | {"options": fields["options"] | {"workers": 0}})


@pytest.mark.parametrize(
    ("hosts", "places"), [((), [0, 1, 2, 3]), (("a", "b", "b", "a"), [0, 0, 1, 1])]
)
def test_worker_has_a_place_among_those_of_its_host(
    hosts: tuple[str, ...], places: list[int]
) -> None:
    config = replace(worker_config(workers=(4, 5, 6, 7), worker=4), hosts=hosts)

    found = [replace(config, worker=worker).place_on_host for worker in config.workers]

    assert found == places


def test_script_is_where_its_link_led_when_the_job_began(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").touch()
    link, begun = tmp_path / "current", str(tmp_path / "one/train.py")
    link.symlink_to("two")
    config = worker_config(script=link / "train.py")

    assert config.script == tmp_path / "two/train.py"
    assert replace(config, script_begun=begun).script == tmp_path / "one/train.py"
    (tmp_path / "one").rename(tmp_path / "gone")
    assert replace(config, script_begun=begun).script == tmp_path / "one/train.py"
    elsewhere = replace(config, script_begun=begun, hosts=("a",))
    assert elsewhere.script == tmp_path / "two/train.py"
