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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        self._begin(None)

    def _begin(self, entry: Entry[JobStarted] | None) -> None:
        self._script = "" if entry is None else (entry.event.script or "")
        self._began = None if entry is None else (entry.now, entry.time)
        self._ended: Entry[JobEnded] | None = None
        self._deaths: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._useful = UsefulTime()
        self._pace = Pace()
        self._step: Step | None = None
        self._epoch = 0
        self._metrics: Mapping[str, float] = {}
        self._save: Entry[Checkpoint] | None = None
        self._recovery_s = 0.0
        self._looked: tuple[float, float] | None = None
        self._workers: tuple[WorkerReport, ...] = ()

    def saw(self, line: Mapping[str, Any]) -> None:
        """Take note of a line of the journal."""
        entry = entry_of(line)
        if entry is None:
            return
        with self._changing:
            self._saw(entry)

    def _saw(self, entry: Entry[Any]) -> None:
        event = entry.event
        match event:
            case JobStarted():
                self._begin(entry)
            case JobEnded():
                self._ended = entry
            case Launch() | Relaunch():
                self._useful.interrupted()
                self._counts["relaunches"] += isinstance(event, Relaunch)
            case Failure():
                self._deaths[cause_of(event)] += 1
            case Recovery():
                self._counts["recoveries"] += 1
                self._recovery_s += (event.next_step_ms or 0.0) / 1000
            case Step():
                self._useful.stepped(event, entry.now)
                self._pace = self._pace.observe(event.step, entry.now)
                self._step, self._epoch = event, event.epoch
                self._counts["steps"] += event.number
                self._counts["samples"] += event.samples
            case Epoch():
                validation = (event.validation or {}).items()
                found = {f"val_{name}": value for name, value in validation}
                self._metrics = {**(event.metrics or {}), **found}
            case Checkpoint():
                self._counts["saves"] += 1
                self._save = entry
            case CheckpointFailed():
                self._counts["failed saves"] += 1

    def look(self, message: Message) -> None:
        """Take what the head tells of the workers that live just now."""
        workers = map(WorkerReport.of, message["workers"])
        progress = StepReport.of(message.get("progress"))
        with self._changing:
            self._looked = float(message["now"]), float(message["time"])
            self._workers = tuple(worker for worker in workers if worker is not None)
            if progress is not None:
                self._epoch = progress.epoch
                self._metrics = {**self._metrics, **progress.metrics}

    def collect(self) -> Iterator[Metric]:
        """Yield all figures."""
        with self._changing:
            yield from [*self._of_job(), *self._of_training(), *self._of_workers()]

    def _of_job(self) -> Iterator[Metric]:
        is_running = self._began is not None and self._ended is None
        info = {"run_id": self._run_id, "script": Path(self._script).name}
        yield _gauge("run_info", "The run, by its labels.", [(info, 1.0)])
        yield _gauge("job_running", "1 until the job has ended.", is_running)
        if self._ended is not None:
            code = self._ended.event.exit_code
            yield _gauge("job_exit_code", "How the job has ended.", code)
        if self._began is not None:
            yield _gauge("job_start_time_seconds", "When the job began.", self._began[1])
        if self._looked is not None:
            yield _gauge("look_time_seconds", "When the head told of workers.", self._looked[1])
        deaths = [({"cause": cause}, float(count)) for cause, count in self._deaths.items()]
        yield _counter("deaths", "Workers that died.", deaths or 0)
        counts = self._counts
        yield _counter("relaunches", "Launches after the first one.", counts["relaunches"])
        yield _counter("recoveries", "Deaths that survivors went on after.", counts["recoveries"])
        yield _counter("recovery_seconds", "Time of these recoveries.", self._recovery_s)
        yield _counter("saves", "Checkpoints.", counts["saves"])
        yield _counter("failed_saves", "Checkpoints that failed.", counts["failed saves"])
        if self._save is not None:
            saved = self._save.event
            yield _gauge("last_save_time_seconds", "When it was durable.", self._save.time)
            yield _gauge("last_save_seconds", "How long it took.", saved.seconds)
            yield _gauge("last_save_bytes", "Its size.", saved.bytes)
            yield _gauge("last_save_step", "Its step.", saved.step)

    def _of_training(self) -> Iterator[Metric]:
        yield _counter("steps", "Steps, also those that were done again.", self._counts["steps"])
        yield _counter("samples", "Samples of these steps.", self._counts["samples"])
        yield _counter("training_seconds", "Time of steps that count.", self._useful.seconds)
        if self._step is not None:
            yield _gauge("step", "The last step.", self._step.step)
            yield _gauge("epoch", "The epoch in hand.", self._epoch)
        yield _gauge("steps_per_second", "Of late.", 0.0 if self._ended else self._pace.per_s)
        wall_s = self._wall_s
        if wall_s:
            share = min(1.0, self._useful.seconds / wall_s)
            yield _gauge("goodput_ratio", "Time of steps that count, of all time.", share)
        shown = [({"name": name}, value) for name, value in self._metrics.items()]
        yield _gauge("training_metric", "Loss and metrics of the last epoch, or so far.", shown)

    @property
    def _wall_s(self) -> float:
        if self._began is None:
            return 0.0
        moments = [entry.now for entry in (self._ended,) if entry is not None]
        moments = moments or [look[0] for look in (self._looked,) if look is not None]
        return moments[0] - self._began[0] if moments else 0.0

    def _of_workers(self) -> Iterator[Metric]:
        has_ended = self._ended is not None
        living = [w for w in self._workers if w.pid is not None and not has_ended]
        yield _gauge("workers", "Workers that live.", len(living))
        of_hosts: Counter[str] = Counter()
        for worker in living:
            of_hosts[worker.host] += worker.resident_bytes or 0
        hosts = [({"host": host}, float(size)) for host, size in of_hosts.items()]
        yield _gauge("memory_bytes", "Resident memory of a host's workers.", hosts)
        sizes = [(_labels(worker), float(worker.resident_bytes or 0)) for worker in living]
        spent = [
            (_labels(worker) | {"activity": name}, seconds)
            for worker in self._workers
            for name, seconds in worker.spent_s.items()
        ]
        yield _gauge("worker_memory_bytes", "Resident memory of a worker.", sizes)
        yield _counter("worker_seconds", "Time of a worker by what it did.", spent)


_Samples = Iterable[tuple[Mapping[str, str], float]] | float


def _labels(worker: WorkerReport) -> dict[str, str]:
    return {"worker": str(worker.worker), "host": worker.host}


def _gauge(name: str, text: str, value: _Samples) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return _with(GaugeMetricFamily(f"holdfast_{name}", text), "", value)


def _counter(name: str, text: str, value: _Samples) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    return _with(CounterMetricFamily(f"holdfast_{name}", text), "_total", value)


def _with(metric: Metric, suffix: str, value: _Samples) -> Metric:
    found = [({}, float(value))] if isinstance(value, (int, float)) else value
    for labels, number in found:
        metric.add_sample(metric.name + suffix, dict(labels), number)
    return metric


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
