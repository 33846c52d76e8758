"""What Prometheus is shown of a job, in a file: figures of its journal and of its workers.

The writer has every line of the journal anyway, decides nothing, and may die: so it shows them.  It
counts from the begin of the job, which a writer after another one finds in the journal.  Every few
seconds the head tells what no journal has: the workers that live, their memory and their time.

Figures are those of one job, and begin anew with the next one.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from holdfast.recovery.event import WorkerExited
from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed
from holdfast.runtime.run.entries import Entry, entry_in
from holdfast.runtime.run.events import Epoch, JobEnded, JobStarted, Recovery, Relaunch, Step
from holdfast.runtime.run.files import BoundedCalls, write_whole
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.live_line import Pace
from holdfast.runtime.run.progress import LaunchReport, WorkerReport

_TAIL_BYTES = 16 << 20
"""A hundred thousand lines, which take a second or two."""

_LAST_WITHIN_S = 10.0
_OWN_CAUSES = ("signal", "exit", "out of memory", "not started", "fenced")

_TEXTS = {
    "run_info": "The run, by its labels.",
    "job_running": "1 until the job has ended.",
    "job_exit_code": "How the job has ended.",
    "job_start_time_seconds": "When the job began.",
    "look_time_seconds": "When the head told of workers.",
    "last_save_time_seconds": "When it was durable.",
    "last_save_seconds": "How long it took.",
    "last_save_bytes": "Its size.",
    "last_save_step": "Its step.",
    "step": "The last step.",
    "epoch": "The epoch in hand.",
    "steps_per_second": "Of late.",
    "training_metric": "Loss and metrics of the last epoch, or so far.",
    "workers": "Workers that live.",
    "memory_bytes": "Resident memory of a host's workers.",
    "worker_memory_bytes": "Resident memory of a worker.",
    "deaths_total": "Workers that died.",
    "relaunches_total": "Launches after the first one.",
    "recoveries_total": "Deaths that survivors went on after.",
    "recovery_seconds_total": "Time of these recoveries.",
    "saves_total": "Checkpoints.",
    "failed_saves_total": "Checkpoints that failed.",
    "steps_total": "Steps, also those that were done again.",
    "step_seconds_total": "Time of these steps.",
    "samples_total": "Samples of these steps.",
    "worker_seconds_total": "Time of a worker by what it did.",
}
_LABELS = {
    "run_info": ("run_id", "script"),
    "training_metric": ("name",),
    "memory_bytes": ("host",),
    "worker_memory_bytes": ("worker", "host"),
    "deaths_total": ("cause",),
    "worker_seconds_total": ("worker", "host", "activity"),
}
_FROM_THE_BEGIN = ("workers", "steps_per_second", *(n for n in _TEXTS if n.endswith("_total")))
"""All others are shown from their first value on: a save at 1970 would be an alarm."""


def cause_of(failure: WorkerExited) -> str:
    """Return the kind of a death, one of few: the limit, the signal, or the first words."""
    if failure.limit is not None:
        return failure.limit
    if failure.cause.startswith("signal "):
        return failure.cause
    return next((kind for kind in _OWN_CAUSES if failure.cause.startswith(kind)), "with its launch")


class MetricsShown:
    """The figures of one job in their file, from now until this process ends."""

    def __init__(self, run_id: str, file: Path, warn: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._file = file
        self._warn = warn
        self._has_warned = False
        self._writes = BoundedCalls("holdfast-metrics", most_queued=1)
        self._begin("")

    def _begin(self, script: str) -> None:
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._has_ended, self._pace = False, Pace()
        self._metrics: Mapping[str, float] = {}
        for name in _FROM_THE_BEGIN:
            self._gauge(name)
        self._set(job_running=0.0)
        self._gauge("run_info").labels(self._run_id, Path(script).name).set(1.0)

    def _gauge(self, name: str) -> Gauge:
        if name not in self._gauges:
            self._gauges[name] = Gauge(
                f"holdfast_{name}", _TEXTS[name], _LABELS.get(name, ()), registry=self._registry
            )
        return self._gauges[name]

    def _set(self, **values: float) -> None:
        for name, value in values.items():
            self._gauge(name).set(value)

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._gauge(name).inc(value)

    def _replace(self, name: str, values: Mapping[tuple[str, ...], float]) -> None:
        """Show values by their labels, in the place of all before."""
        gauge = self._gauge(name)
        gauge.clear()
        for labels, value in values.items():
            gauge.labels(*labels).set(value)

    def go_on(self, journal: Path) -> None:
        """Count what the journal tells of the job so far: another writer may have been here."""
        with contextlib.suppress(OSError):
            self.saw(JournalReader(journal, tail_bytes=_TAIL_BYTES).lines())

    def saw(self, lines: Iterable[str | bytes]) -> None:
        """Count lines of the journal."""
        for entry in filter(None, map(entry_in, lines)):
            self._saw(entry)

    def _saw(self, entry: Entry[Any]) -> None:
        event = entry.event
        match event:
            case JobStarted():
                self._begin(event.script or "")
                self._set(job_running=1.0, job_start_time_seconds=entry.time)
            case JobEnded():
                self._has_ended = True
                self._set(job_running=0.0, job_exit_code=event.exit_code, steps_per_second=0.0)
                self._tell_workers(())
            case Relaunch():
                self._add(relaunches_total=1)
            case WorkerExited():
                self._gauge("deaths_total").labels(cause_of(event)).inc()
            case Recovery():
                length_s = (event.next_step_ms or 0.0) / 1000
                self._add(recoveries_total=1, recovery_seconds_total=length_s)
            case Step():
                self._pace = self._pace.observe(event.step, entry.now)
                self._set(step=event.step, epoch=event.epoch, steps_per_second=self._pace.per_s)
                self._add(steps_total=event.number, step_seconds_total=event.seconds)
                self._add(samples_total=event.samples)
            case Epoch():
                validation = (event.validation or {}).items()
                self._metrics = {f"val_{name}": value for name, value in validation}
                self._tell_metrics(event.metrics or {})
            case Checkpoint():
                self._add(saves_total=1)
                self._set(last_save_time_seconds=entry.time, last_save_seconds=event.seconds)
                self._set(last_save_bytes=event.bytes, last_save_step=event.step)
            case CheckpointFailed():
                self._add(failed_saves_total=1)

    def look(self, now: float, seen: LaunchReport) -> None:
        """Take what the head sees of the workers that live, and write the file anew."""
        progress = seen.progress
        self._set(look_time_seconds=now)
        if not self._has_ended:
            self._tell_workers([worker for worker in seen.workers if worker.pid is not None])
        spent: dict[tuple[str, ...], float] = {
            (str(worker.worker), worker.host, activity): seconds
            for worker in seen.workers
            for activity, seconds in worker.spent_s.items()
        }
        self._replace("worker_seconds_total", spent)
        if progress is not None:
            if "step" in self._gauges:
                self._set(epoch=progress.epoch)
            self._tell_metrics(progress.metrics)
        self.write()

    def _tell_metrics(self, new: Mapping[str, float]) -> None:
        self._metrics = {**self._metrics, **new}
        self._replace("training_metric", {(name,): one for name, one in self._metrics.items()})

    def _tell_workers(self, living: Sequence[WorkerReport]) -> None:
        self._set(workers=len(living))
        sizes: dict[tuple[str, ...], float] = {}
        of_hosts: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for one in living:
            size = float(one.resident_bytes or 0)
            sizes[str(one.worker), one.host] = size
            of_hosts[one.host,] += size
        self._replace("worker_memory_bytes", sizes)
        self._replace("memory_bytes", of_hosts)

    def write(self) -> None:
        """Write the file anew, as a whole; warn once if it cannot be written.

        A thread writes, and only the first write that takes long is waited for, for a second.
        """
        self._text = generate_latest(self._registry)
        if not self._writes.run(self._write):
            self._complain("its disk has not answered since the last write")

    def close(self) -> None:
        """Write the file for the last time, and wait for that, but not for long."""
        self.write()
        self._writes.close(_LAST_WITHIN_S)

    def _write(self) -> None:
        try:
            write_whole(self._file, self._text)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def _complain(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"metrics are not written to {self._file}: {why}")
