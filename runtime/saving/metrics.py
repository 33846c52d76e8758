"""What other programs are shown of a job: the figures of Prometheus, in a file and over HTTP.

The writer has every line of the journal anyway, decides nothing, and may die: so it shows them.  It
counts from the begin of the job, which a writer after another one finds in the journal.  Every few
seconds the head tells what no journal has: the workers that live, their memory and their time.

Counters are those of one job, and begin anew with the next one, as Prometheus expects it.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.runtime.options.job_options import MetricsTerms
from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed
from holdfast.runtime.run.entries import Entry, entry_of
from holdfast.runtime.run.events import (
    Epoch,
    Failure,
    JobEnded,
    JobStarted,
    Launch,
    Recovery,
    Relaunch,
    Step,
)
from holdfast.runtime.run.files import BoundedCalls, write_whole
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.live_line import Pace
from holdfast.runtime.run.progress import StepReport, WorkerReport
from holdfast.runtime.system.channel import Message

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_JOB_STARTED = b'"event": "job_started"'
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
    "goodput_ratio": "Time of steps that count, of all time.",
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
    "samples_total": "Samples of these steps.",
    "training_seconds_total": "Time of steps that count.",
    "worker_seconds_total": "Time of a worker by what it did.",
}
"""Counters end with `_total`, all others are gauges."""

_Labels: TypeAlias = tuple[tuple[str, str], ...]
_NONE: _Labels = ()


def cause_of(failure: Failure) -> str:
    """Return the kind of a death, one of few: the limit, the signal, or the first words."""
    if failure.limit is not None:
        return failure.limit
    if failure.cause.startswith("signal "):
        return failure.cause
    return next((kind for kind in _OWN_CAUSES if failure.cause.startswith(kind)), "with its launch")


class UsefulTime:
    """The time of steps that count, as goodput has it; `holdfast report` has it exactly.

    What lies between two steps of one world counts too, as validation and the stall of a save do.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._highest = 0
        self._last: tuple[float, int] | None = None

    def interrupted(self) -> None:
        """The time to the next step is none of training."""
        self._last = None

    def stepped(self, step: Step, now: float) -> None:
        """Add a step, unless a relaunch does it again."""
        length_s = step.seconds
        if self._last is not None and self._last[1] == step.generation:
            length_s = max(0.0, now - self._last[0])
        new = min(step.number, max(0, step.step - self._highest))
        self.seconds += length_s * new / step.number
        self._highest = max(self._highest, step.step)
        self._last = now, step.generation


class JobFigures:
    """The figures of one job; a collector of prometheus-client, which may ask in any thread."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._changing = threading.Lock()
        self._begin(None, "")

    def _begin(self, began_s: float | None, script: str) -> None:
        self._began_s, self._has_ended = began_s, False
        self._useful, self._pace = UsefulTime(), Pace()
        self._metrics: Mapping[str, float] = {}
        self._samples: dict[str, dict[_Labels, float]] = {
            **{name: {_NONE: 0.0} for name in _TEXTS if name.endswith("_total")},
            **{name: {_NONE: 0.0} for name in ("job_running", "steps_per_second", "workers")},
            "worker_seconds_total": {},
            "run_info": {(("run_id", self._run_id), ("script", Path(script).name)): 1.0},
        }

    def _set(self, **values: float) -> None:
        self._samples |= {name: {_NONE: float(value)} for name, value in values.items()}

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            self._samples[name][_NONE] += value

    def saw(self, line: Mapping[str, Any]) -> None:
        """Take note of a line of the journal."""
        entry = entry_of(line)
        if entry is not None:
            with self._changing:
                self._saw(entry)

    def _saw(self, entry: Entry[Any]) -> None:
        event = entry.event
        match event:
            case JobStarted():
                self._begin(entry.now, event.script or "")
                self._set(job_running=1.0, job_start_time_seconds=entry.time)
            case JobEnded():
                self._has_ended = True
                self._set(job_running=0.0, job_exit_code=event.exit_code, steps_per_second=0.0)
                self._tell_goodput(entry.now)
                self._tell_workers(())
            case Launch() | Relaunch():
                self._useful.interrupted()
                self._add(relaunches_total=isinstance(event, Relaunch))
            case Failure():
                deaths, labels = self._samples["deaths_total"], (("cause", cause_of(event)),)
                deaths.pop(_NONE, None)
                deaths[labels] = deaths.get(labels, 0.0) + 1
            case Recovery():
                length_s = (event.next_step_ms or 0.0) / 1000
                self._add(recoveries_total=1, recovery_seconds_total=length_s)
            case Step():
                self._useful.stepped(event, entry.now)
                self._pace = self._pace.observe(event.step, entry.now)
                self._set(step=event.step, epoch=event.epoch, steps_per_second=self._pace.per_s)
                self._set(training_seconds_total=self._useful.seconds)
                self._add(steps_total=event.number, samples_total=event.samples)
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

    def look(self, message: Message) -> None:
        """Take what the head tells of the workers that live just now."""
        workers = [w for w in map(WorkerReport.of, message["workers"]) if w is not None]
        progress = StepReport.of(message.get("progress"))
        with self._changing:
            self._set(look_time_seconds=message["time"])
            if not self._has_ended:
                self._tell_goodput(float(message["now"]))
                self._tell_workers([worker for worker in workers if worker.pid is not None])
            self._samples["worker_seconds_total"] = {
                (*_labels(worker), ("activity", name)): seconds
                for worker in workers
                for name, seconds in worker.spent_s.items()
            }
            if progress is not None:
                if "step" in self._samples:
                    self._set(epoch=progress.epoch)
                self._tell_metrics(progress.metrics)

    def _tell_metrics(self, new: Mapping[str, float]) -> None:
        self._metrics = {**self._metrics, **new}
        self._samples["training_metric"] = {
            (("name", name),): value for name, value in self._metrics.items()
        }

    def _tell_goodput(self, now_s: float) -> None:
        if self._began_s is not None and now_s > self._began_s:
            share = self._useful.seconds / (now_s - self._began_s)
            self._set(goodput_ratio=min(1.0, share))

    def _tell_workers(self, living: Sequence[WorkerReport]) -> None:
        self._set(workers=len(living))
        sizes = {_labels(worker): float(worker.resident_bytes or 0) for worker in living}
        of_hosts: defaultdict[_Labels, float] = defaultdict(float)
        for labels, size in sizes.items():
            of_hosts[labels[1:]] += size
        self._samples |= {"worker_memory_bytes": sizes, "memory_bytes": of_hosts}

    def collect(self) -> Iterator[Metric]:
        """Yield all figures."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        with self._changing:
            for name, text in _TEXTS.items():
                is_counter = name.endswith("_total")
                kind = CounterMetricFamily if is_counter else GaugeMetricFamily
                family = kind(f"holdfast_{name}", text)
                for labels, value in self._samples.get(name, {}).items():
                    family.add_sample(f"holdfast_{name}", dict(labels), value)
                yield family


def _labels(worker: WorkerReport) -> _Labels:
    return ("worker", str(worker.worker)), ("host", worker.host)


class MetricsShown:
    """The figures in their file and at their port, from now until this process ends."""

    def __init__(self, run_id: str, terms: MetricsTerms, warn: Callable[[str], None]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._file = terms.file
        self._warn = warn
        self._has_warned = False
        self._writes = BoundedCalls("holdfast-metrics", most_queued=1)
        self._figures = JobFigures(run_id)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._figures)
        if terms.port is not None:
            try:
                start_http_server(terms.port, terms.host, self._registry)
            except OSError as error:
                place = f"{terms.host}:{terms.port}"
                warn(f"metrics are not shown at {place}: {error.strerror or error}")

    def go_on(self, journal: Path) -> None:
        """Count what the journal tells of the job so far: another writer may have been here."""
        with contextlib.suppress(OSError):
            lines = list(JournalReader(journal, tail_bytes=_TAIL_BYTES).lines())
            begun = [n for n, line in enumerate(lines) if _JOB_STARTED in line]
            self.saw(lines[begun[-1] if begun else 0 :])

    def saw(self, lines: Iterable[str | bytes]) -> None:
        """Count lines of the journal."""
        for line in lines:
            with contextlib.suppress(ValueError):  # torn
                self._figures.saw(json.loads(line))

    def look(self, message: Message) -> None:
        """Take what the head tells of the workers, and write the file anew."""
        self._figures.look(message)
        self.write()

    def write(self) -> None:
        """Write the file anew, as a whole; warn once if it cannot be written.

        A thread writes, and only the first write that takes long is waited for, for a second.
        """
        from prometheus_client import generate_latest

        self._text = generate_latest(self._registry)
        if self._file is not None and not self._writes.run(self._write):
            self._complain("its disk has not answered since the last write")

    def close(self) -> None:
        """Write the file for the last time, and wait for that, but not for long."""
        self.write()
        self._writes.close(_LAST_WITHIN_S)

    def _write(self) -> None:
        assert self._file is not None
        try:
            write_whole(self._file, self._text)
        except OSError as error:
            self._complain(error.strerror or str(error))

    def _complain(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"metrics are not written to {self._file}: {why}")
