"""What Prometheus is shown of a job: the figures of its journal and of its workers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from journal_entries import line
from prometheus_client import parser

from holdfast.runtime.run.journal import line_of
from holdfast.runtime.run.progress import LaunchReport, StepReport, WorkerReport
from holdfast.runtime.saving.metrics import MetricsShown

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"
JOB = (
    line("job_started", 0.0, workers=2, script="/a/train.py"),
    line("launch", 1.0, generation=1, workers=[0, 1]),
    *(line("step", 10.0 + n, step=n + 1, epoch=1, seconds=0.9, samples=8, generation=1)
      for n in range(4)),
    line("checkpoint", 13.2, step=3, seconds=0.25, bytes=1000),
    line("failure", 13.5, worker=1, cause="signal SIGKILL", step=4),
    line("failure", 13.6, worker=1, cause="exit 3"),
    line("recovery", 14.0, lost=[1], survivors=[0], next_step_ms=500.0),
    line("step", 14.0, step=5, epoch=1, seconds=0.4, samples=8, generation=2),
    line("failure", 14.5, worker=0, cause="fenced after 10 s of silence", limit="heartbeat"),
    line("relaunch", 15.0, reason="all workers died", workers=[2, 3], spent=1),
    line("launch", 15.0, generation=3, workers=[2, 3]),
    *(line("step", 20.0 + n, step=n + 4, epoch=1, seconds=0.9, samples=8, generation=3)
      for n in range(3)),
    line("epoch", 22.0, epoch=1, step=6, metrics={"loss": 0.5}, validation={"loss": 0.75}),
    line("checkpoint_failed", 22.5, step=6, reason="full"),
)  # fmt: skip
END = line("job_ended", 25.0, exit_code=0)
LOOK = LaunchReport(
    StepReport(23.0, 6, 12, 2, 2, 0, 6, {"loss": 0.25}),
    workers=tuple(
        WorkerReport(n, pid, "training", 6, 3, 100, None, host=host, spent_s={"wait": 2.5})
        for n, pid, host in ((2, 7, "a"), (3, 8, "b"), (4, None, "b"))
    ),
)


def shown_in(text: str) -> dict[str, Any]:
    """Return the samples by their names, with labels if they have any."""
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def shown(tmp_path: Path, *lines: dict[str, Any], is_seen: bool = True) -> MetricsShown:
    made = MetricsShown("r1", tmp_path / "job.prom", pytest.fail)
    made.saw(map(line_of, lines))
    if is_seen:
        made.look(1e9 + 24.0, LOOK)
    return made


def test_file_has_what_the_journal_and_the_workers_tell(tmp_path: Path) -> None:
    shown(tmp_path, *JOB)

    found = shown_in((tmp_path / "job.prom").read_text(encoding="utf-8"))

    expected = {
        "holdfast_run_info{r1,train.py}": 1.0,
        "holdfast_job_running": 1.0,
        "holdfast_job_start_time_seconds": 1e9,
        "holdfast_deaths_total{signal SIGKILL}": 1.0,
        "holdfast_deaths_total{heartbeat}": 1.0,
        "holdfast_deaths_total{exit}": 1.0,
        "holdfast_relaunches_total": 1.0,
        "holdfast_recoveries_total": 1.0,
        "holdfast_recovery_seconds_total": 0.5,
        "holdfast_saves_total": 1.0,
        "holdfast_failed_saves_total": 1.0,
        "holdfast_last_save_time_seconds": 1e9 + 13.2,
        "holdfast_last_save_step": 3.0,
        "holdfast_steps_total": 8.0,
        "holdfast_samples_total": 64.0,
        "holdfast_step_seconds_total": pytest.approx(6.7),
        "holdfast_step": 6.0,
        "holdfast_epoch": 2.0,
        "holdfast_training_metric{loss}": 0.25,
        "holdfast_training_metric{val_loss}": 0.75,
        "holdfast_workers": 2.0,
        "holdfast_memory_bytes{a}": 100.0,
        "holdfast_memory_bytes{b}": 100.0,
        "holdfast_worker_seconds_total{wait,a,2}": 2.5,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert list(tmp_path.iterdir()) == [tmp_path / "job.prom"], "it is replaced as a whole"


def test_ended_job_has_no_workers_and_its_exit_code(tmp_path: Path) -> None:
    made = shown(tmp_path, *JOB)
    made.saw([line_of(END)])
    made.write()

    found = shown_in((tmp_path / "job.prom").read_text(encoding="utf-8"))

    assert (found["holdfast_job_running"], found["holdfast_job_exit_code"]) == (0.0, 0.0)
    assert found["holdfast_workers"] == 0.0


def test_next_writer_goes_on_with_the_counts_of_the_job(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    before = (line("job_started", 0.0, workers=1), line("failure", 1.0, worker=0, cause="exit 1"))
    journal.write_text("".join(line_of(of) + "\n" for of in (*before, *JOB)))
    made = shown(tmp_path, is_seen=False)

    made.go_on(journal)
    made.write()

    found = shown_in((tmp_path / "job.prom").read_text(encoding="utf-8"))
    deaths = {name for name in found if name.startswith("holdfast_deaths")}
    kinds = ("signal SIGKILL", "heartbeat", "exit")
    assert deaths == {f"holdfast_deaths_total{{{kind}}}" for kind in kinds}
    assert found["holdfast_steps_total"] == 8.0


def test_file_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    made = MetricsShown("r1", tmp_path / "nowhere" / "job.prom", warnings.append)

    made.write()
    made.write()

    assert len(warnings) == 1
    assert "No such file or directory" in warnings[0]


def test_dashboard_asks_for_nothing_but_what_is_shown(tmp_path: Path) -> None:
    shown(tmp_path, *JOB)
    names = {name.partition("{")[0] for name in shown_in((tmp_path / "job.prom").read_text())}
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]

    asked = [target["expr"] for panel in panels for target in panel["targets"]]

    assert len(asked) >= len(panels) > 8
    for query in asked:
        found = set(re.findall(r"holdfast_\w+", query))
        assert found
        assert found <= names, query
