from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options import config as config_file
from holdfast.runtime.options.config import RunConfig, default_run_dir, read_config_file


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    script = tmp_path / "train.py"
    script.write_text("")
    return RunConfig(script=script, run_dir=tmp_path / "run", workers=4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workers": 0}, r"-n \(workers\) must be at least 1, got 0"),
        ({"microbatches": 0}, "--microbatches must be at least 1, got 0"),
        ({"verify_every": -1}, "--verify-every must be at least 0, got -1"),
        ({"scrub_every_s": -1.0}, "--scrub-every must be a number of seconds, .* got -1.0"),
        ({"scrub_every_s": float("inf")}, "--scrub-every must be .* or never for none, got inf"),
        ({"spares": -1}, "--spares must be at least 0, got -1"),
        ({"max_restarts": -2}, "--max-restarts must be at least 0, got -2"),
        ({"threads": 0}, "--threads must be at least 1, got 0"),
        ({"save_every": "0"}, "--save-every: .* at least 1, got 0"),
        ({"save_every": "often"}, "--save-every: 'often' is no schedule .*: give a number"),
        ({"seed": -1}, "--seed must be at least 0, got -1"),
        ({"heartbeat_timeout_s": 0.0}, "--heartbeat-timeout must be a positive .* got 0.0"),
        (
            {"heartbeat_timeout_s": float("nan")},
            "--heartbeat-timeout must be a positive .* got nan",
        ),
        (
            {"heartbeat_timeout_s": float("inf")},
            "--heartbeat-timeout must be a positive .* got inf",
        ),
        ({"faults": ("kill worker=1",)}, "--inject: .*step must be given"),
        ({"faults": ("kill worker=1 step=2",) * 2}, "--inject: .*strike at one address"),
        ({"script": Path("/nowhere/train.py")}, "script /nowhere/train.py does not exist"),
        ({"script": Path("/tmp")}, "script /tmp is not a readable file"),
    ],
)
def test_request_that_makes_no_sense_is_refused_with_its_value(
    config: RunConfig, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        dataclasses.replace(config, **change)


def test_run_is_not_repaired_from_itself(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(config.run_dir)

    with pytest.raises(UsageError, match=r"--repair-from .*/alias is the run itself; give another"):
        dataclasses.replace(config, repair_from=tmp_path / "alias")


def test_mirror_that_is_a_link_to_itself_is_left_to_whoever_needs_it(
    config: RunConfig, tmp_path: Path
) -> None:
    """A mirror that is of no use fails nothing."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    assert dataclasses.replace(config, repair_from=tmp_path / "loop").repair_from is not None


def test_what_is_not_given_stays_open_for_the_run_to_decide(config: RunConfig) -> None:
    assert (config.microbatches, config.threads, config.seed) == (None, None, None)


def test_new_run_has_a_microbatch_for_each_worker_and_seed_zero(config: RunConfig) -> None:
    assert config.new_microbatches == 4
    assert config.new_seed == 0


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 1), (9, 2), (64, 16)])
def test_new_run_divides_the_cores_among_the_workers(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(config_file, "usable_cores", lambda: cores)

    assert config.new_threads == threads


def test_new_run_takes_what_was_given(config: RunConfig) -> None:
    given = dataclasses.replace(config, microbatches=12, threads=3, seed=7)

    assert (given.new_microbatches, given.new_threads, given.new_seed) == (12, 3, 7)


def test_run_dir_is_named_after_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert default_run_dir(Path("somewhere/train.py")) == tmp_path / "holdfast-train"


def test_missing_config_file_sets_nothing(tmp_path: Path) -> None:
    assert read_config_file(tmp_path / "holdfast.toml") == {}


def test_options_in_a_config_file_are_named_as_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('[run]\nworkers = 4\nheartbeat-timeout = 2.5\ninject = ["a", "b"]\n')

    options = read_config_file(path)

    assert options == {"run": {"workers": 4, "heartbeat_timeout": 2.5, "inject": ["a", "b"]}}


def test_config_file_that_does_not_parse_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("workers 4")

    with pytest.raises(UsageError, match=r"holdfast\.toml cannot be read: "):
        read_config_file(path)


def test_option_outside_of_a_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("workers = 4")

    with pytest.raises(UsageError, match=r"sets 'workers' outside a table; .* heading \[run\]"):
        read_config_file(path)
