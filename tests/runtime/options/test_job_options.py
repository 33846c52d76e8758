"""What a job may ask for, and how it is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.commands.run import run
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options import job_options
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import RUN

OPTIONS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "options.md"


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    script = tmp_path / "train.py"
    script.write_text("")
    return JobOptions(script=script, run_dir=tmp_path / "run", workers=4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workers": 0}, r"-n \(workers\) must be at least 1, got 0"),
        ({"microbatches": 0}, "--microbatches must be at least 1, got 0"),
        ({"verify_every": -1}, "--verify-every must be at least 0, got -1"),
        ({"spares": -1}, "--spares must be at least 0, got -1"),
        ({"max_restarts": -2}, "--max-restarts must be at least 0, got -2"),
        ({"threads": 0}, "--threads must be at least 1, got 0"),
        ({"save_every": "0"}, "--save-every: .* at least 1, got 0"),
        (
            {"save_every": "often"},
            "--save-every: 'often' is not a valid time to save: give a number",
        ),
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
        ({"shards": 0}, "--shards must be at least 1, got 0"),
        ({"shards": 100_000}, "--shards must be at most 1024, got 100000"),
        ({"scale_rate": "cubic"}, "--scale-lr must be linear or sqrt, got 'cubic'"),
        ({"scale_batch": 0}, "--scale-batch must be at least 1, got 0"),
        ({"grace_s": 0.0}, "--grace must be a positive number of seconds, got 0.0"),
        ({"deadline_s": -1.0}, "--deadline must be a positive number of seconds, got -1.0"),
        ({"stall_timeout_s": -1.0}, "--stall-timeout must be a number of seconds, or 0 or never"),
        ({"wait_lease_s": -1.0}, "--wait-lease must be a time of 0 s or more, got -1.0"),
        ({"faults": ("kill worker=1",)}, "--inject: .*step must be given"),
        ({"faults": ("kill worker=1 step=2",) * 2}, "--inject: .*strike at one address"),
    ],
)
def test_request_that_makes_no_sense_is_refused_with_its_value(
    options: JobOptions, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=f"^{complaint}"):
        dataclasses.replace(options, **change)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 1), (9, 2), (64, 16)])
def test_new_run_divides_the_cores_among_the_workers(
    options: JobOptions, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(job_options, "usable_cores", lambda: cores)

    assert options.new_threads == threads


@pytest.mark.parametrize("field", dataclasses.fields(JobOptions), ids=lambda field: field.name)
def test_every_field_has_a_flag_a_variable_and_a_line_in_the_docs(field: Any) -> None:
    """Or it says why people do not set it."""
    option = OPTIONS[field.name]
    page = OPTIONS_PAGE.read_text(encoding="utf-8")

    if option.flags:
        assert option.flags[-1].startswith("--")
        assert option.variable == "HOLDFAST_" + option.flags[-1][2:].replace("-", "_").upper()
        assert f"`{option.flags[-1]}" in page
        assert option.help in page
        assert option.commands
    else:
        assert option.help
        assert f"| `{field.name}` | {option.help} |" in page


def test_command_line_has_the_flags_of_the_options() -> None:
    found = {flag for param in run.params for flag in param.opts if flag.startswith("-")}
    options = (option for option in OPTIONS.values() if RUN in option.commands)
    wanted = {flag for option in options for flag in option.flags}

    assert found - wanted <= {"--show-config"}
    assert wanted <= found


def test_differences_are_named_with_both_values() -> None:
    own = JobOptions(Path("/a.py"), Path("/run"), workers=2)
    asked = dataclasses.replace(own, workers=4, save_every="10", shrink=False, preload=())

    assert own.differences(own) == ()
    assert own.differences(asked) == (
        "--workers 2, not 4",
        "--save-every left out, not 10",
        "--shrink yes, not no",
        "--preload tensorflow,keras, not left out",
    )


def test_modules_that_the_user_has_named_are_those_beside_the_default(options: JobOptions) -> None:
    assert options.named_modules == ()
    named = dataclasses.replace(options, preload=("keras", "sklearn", "torch"))
    assert named.named_modules == ("sklearn", "torch")
