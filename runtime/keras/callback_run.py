"""Keras's callbacks as the callback host of a stage: they see what they see under ``fit``.

Hooks run in rounds (DESIGN.md).  So a sequence of hooks is a generator here, which waits wherever
an agreement may be due.

A hook that raises ends its round.  If hooks of all workers raise alike, that ends the training.  It
is not run again after a relaunch: its ``fit`` raises the error once more.  So the error is kept as
a JSON object, which names the class and its base classes.  It is made again of the first of them
that the process has, with plain arguments and attributes.  Nothing is imported or called for it,
not even the class's ``__init__``.

A model that is compiled with ``steps_per_execution`` runs so many steps in Keras between two hooks
about batches: an *execution*.  Here each step is a commit of its own, and hooks rest within one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import Decision, Effects
from holdfast.recovery.work_plan import Work
from holdfast.runtime.errors import JobError, ProgramError
from holdfast.runtime.keras.callback_rounds import CallbackRounds, UnknownLogs
from holdfast.runtime.keras.callback_rules import (
    ends_at_nan,
    needs_logs,
    sees_metrics,
    steps_per_execution,
)
from holdfast.runtime.keras.held_variables import encoded, put_back
from holdfast.runtime.keras.plain_values import Decoder, Encoder, Json, NotPlain
from holdfast.runtime.model.model_rules import some_of
from holdfast.runtime.model.replica import Replica, hold_metrics
from holdfast.runtime.run.events import Epoch
from holdfast.runtime.training.callback_host import CallbackHost, Commit, Notes

_MOST_BYTES = 255


def kind_of(error: BaseException) -> bytes:
    """Return the name of an error's class, shortened, as workers compare it."""
    return _name(type(error)).encode()[-_MOST_BYTES:]


def note_of(error: Exception) -> dict[str, Json]:
    """Return what is kept of ``error``."""
    return {
        "classes": [_name(kind) for kind in type(error).__mro__ if issubclass(kind, Exception)],
        "args": [_plain(value) for value in _args(error)],
        "fields": {name: _plain(value) for name, value in vars(error).items()},
    }


def made_again(note: Mapping[str, Any]) -> Exception:
    """Return the error that ``note_of`` has kept."""
    decode = Decoder().decode
    known = {_name(kind): kind for kind in _kinds(Exception)}
    kind = next(known[name] for name in note["classes"] if name in known)
    error = kind.__new__(kind, *map(decode, note["args"]))
    vars(error).update({name: decode(value) for name, value in note["fields"].items()})
    return error


def _args(error: Exception) -> tuple[object, ...]:
    """Return the arguments that an error was made of; those of an OSError lack its file."""
    if isinstance(error, OSError) and error.filename is not None:
        return (*error.args[:2], error.filename)
    return error.args


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _kinds(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Yield a class of errors and all that derive from it, of one name the newest last."""
    yield kind
    for derived in kind.__subclasses__():
        yield from _kinds(derived)


def _plain(value: object) -> Json:
    """Return a value as JSON, a text in place of one that is not plain."""
    try:
        return Encoder().encode(value)
    except NotPlain:
        return Encoder().encode(str(value))


@dataclass(slots=True)
class _Position:
    """Where the callbacks are: the epoch, the batch in it, and whether it has begun."""

    epoch: int
    batch: int = 0
    has_begun: bool = False
    is_over: bool = False
    is_cut: bool = False
    """Whether a callback has stopped the training before the epoch's last batch."""
    has_ended: bool = False
    """Whether ``on_train_end`` has run."""
    error: Json = None
    """The error of a hook that has ended the training, None for any other end."""
    is_in_test: bool = False
    """Whether ``on_test_begin`` has run, and ``on_test_end`` has not."""
    wants_stop: bool = False
    """Whether a hook has set ``model.stop_training``, which counts after the execution."""


class CallbackRun(CallbackHost):
    """The callbacks of one call of ``fit``, and its ``History``."""

    def __init__(
        self,
        model: Any,
        replica: Replica,
        rounds: CallbackRounds,
        epochs: range,
        tell: Callable[[str], None],
        tell_data: Callable[[int], None] | None = None,
        validation_batches: int = 0,
    ) -> None:
        """Go along with a training, whose validations have so many batches.

        ``tell_data`` tells the data of epochs, as often in all as it is given: at Keras's begin,
        and at both ends of each epoch.  It is None for data that have no hook of the script.
        """
        self._model = model
        self._replica = replica
        self._rounds = rounds
        self._epochs = epochs
        self._tell = tell
        self._tell_data = tell_data
        self._validation_batches = validation_batches
        self._at = _Position(epochs.start)
        self._execution = steps_per_execution(model)
        self._is_running = False
        self._is_fresh = False
        self._loaded: Tensors = {}
        self._logs: dict[str, float] = {}
        self._waiting: Iterator[None] = iter(())
        self._raised: Exception | None = None
        self.tells_script = False
        """Whether the script's own stream gets a line of each epoch, on all workers the same."""

    @property
    def is_over(self) -> bool:
        return self._at.is_over

    @property
    def cuts_epoch(self) -> bool:
        return self._at.is_cut

    @property
    def has_effects(self) -> bool:
        return self._rounds.is_due or (self._raised is not None and self._at.error is None)

    @property
    def error(self) -> Exception | None:
        if self._raised is None and self._at.error is not None:
            self._raised = made_again(self._at.error)
        return self._raised

    @property
    def history(self) -> Any:
        """Keras's ``History`` of the call."""
        return self._rounds.history

    def restore(self, cursor: Cursor, notes: Notes | None) -> None:
        if notes is not None:
            self._at = _Position(**notes["position"])
        if notes is not None and (self._is_running or self._is_complete):
            self._rounds.take(notes, self._loaded)
            if self._is_complete:
                self._rounds.introduce()
                put_back(self._model.metrics_variables, notes.get("metrics", []))
            else:
                self._model.stop_training = self._at.wants_stop
            return
        self._is_running = True
        self._model.stop_training = False
        with self._keeping_error():
            if notes is None:
                self._is_fresh = True
                self._rounds.begin()
            else:
                self._at.has_ended = False
                self._rounds.resume(notes, self._loaded, is_in_test=self._at.is_in_test)
                self._model.stop_training |= self._at.wants_stop
        if self._raised is not None:
            return
        for what in self._rounds.unkept():
            self._tell(
                f"the callback's {what} is not kept in checkpoints: a relaunch begins with "
                "a new one; give the callback get_state() and set_state() to keep it"
            )
        if lost := self._rounds.datasets.lost():
            self._tell(
                f"the dataset's {some_of(lost, 3)} was too large to be kept in checkpoints, and "
                "begins as the script makes it: if batches depend on it, the result is another one"
            )
        found = self._rounds.held.unkept_of_graphs()
        if found:
            self._tell(
                f"the step reads {some_of(found, 3)} beside the model, too large to be kept in "
                "checkpoints: if callbacks change that, make it a weight of the model"
            )
        self._go_on(self._begin())

    def before(self, work: Work, cursor: Cursor) -> None:
        self._rounds.traced.check_functions(has_begun=self._at.epoch > self._epochs.start)
        changed = self._rounds.traced.check() if self._is_fresh else []
        self._is_fresh = False
        for what in changed:
            self._tell(
                f"a callback has set {what} before the first step, and holdfast has made the "
                "graph of a step by then: if the step reads it, set it before fit() is called, "
                "or make it a variable"
            )

    def acts_after(self, commit: Commit) -> bool:
        if self._is_within_execution(commit):
            return False
        is_at_end = commit.work is Work.EVALUATE or commit.has_ended_epoch or commit.data_ended
        is_at_end |= commit.next_work is not Work.TRAIN
        if is_at_end:
            return self._tell_data is not None or bool(self._rounds.kept)
        return self._rounds.acts_on_batches()

    def after(self, commit: Commit) -> None:
        self._go_on(self._follow(commit))

    def end(self) -> None:
        self._go_on(self._end())

    def settings(self) -> Mapping[str, str]:
        return self._rounds.settings()

    def lead(self, *, is_first: bool) -> None:
        if is_first:
            self._rounds.lead()

    def effects(self) -> Effects:
        effects = self._rounds.effects()
        return effects if self._raised is None else replace(effects, error=kind_of(self._raised))

    def message(self) -> bytes:
        return self._rounds.message()

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        if notes is not None:
            tensors = self._loaded if decision.shares_state else self._rounds.tensors()
            self._rounds.take(notes, tensors)
        self._model.stop_training = decision.is_stop_wanted
        self._rounds.agreed(message)
        if decision.raises:
            assert self._raised is not None
            self._at.error, self._at.is_over = note_of(self._raised), True
        else:
            self._go_on(self._waiting)

    def notes(self) -> Notes:
        at = self._at
        wants_stop = bool(self._model.stop_training and at.has_begun)
        fields = asdict(replace(at, wants_stop=wants_stop))
        position = {n: one for n, one in fields.items() if one or n not in ("error", "wants_stop")}
        notes = {"position": position, **self._rounds.notes()}
        if at.has_ended:  # a launch that only returns the end has no sums of the last validation
            notes["metrics"] = encoded(self._model.metrics_variables)
        return notes

    def tensors(self) -> Tensors:
        return self._rounds.tensors()

    def load(self, tensors: Tensors) -> None:
        self._loaded = tensors

    def close(self) -> None:
        """Give back what only a training needs."""
        self._rounds.close()

    @property
    def _is_complete(self) -> bool:
        """Whether the stage that was restored has nothing left to do."""
        at = self._at
        is_last = at.is_over or at.epoch >= self._epochs.stop
        return at.error is not None or (at.has_ended and is_last)

    def _go_on(self, rounds: Iterator[None]) -> None:
        """Run rounds up to the next agreement; the rest waits for it."""
        self._waiting = rounds
        with self._keeping_error():
            for _ in rounds:
                if self._rounds.is_due:
                    return
        self._waiting = iter(())

    @contextlib.contextmanager
    def _keeping_error(self) -> Iterator[None]:
        """Keep what the script's hooks raise until the workers have agreed whose it is."""
        try:
            yield
        except JobError:
            raise
        except Exception as error:
            cause = error.__cause__  # no generator lets a StopIteration through
            self._raised = cause if isinstance(cause, StopIteration) else error

    def _begin(self) -> Iterator[None]:
        """Begin the epoch and the batch that come next, unless they have begun."""
        at = self._at
        yield
        if at.has_begun or at.epoch >= self._epochs.stop:
            return
        at.has_begun = True
        self._model.reset_metrics()
        self._rounds.call("on_epoch_begin", at.epoch)
        yield
        self._hear_of_epoch(begun=1)
        self._rounds.call_each("on_train_batch_begin", at.batch, {})
        yield

    def _follow(self, commit: Commit) -> Iterator[None]:
        """Run what Keras runs from the end of one batch to the beginning of the next."""
        at, data_ended = self._at, commit.data_ended
        if self._is_within_execution(commit):
            at.batch += 1
            return
        if commit.work is Work.TRAIN:
            last = at.batch - at.batch % self._execution + self._execution - 1
            if self._rounds.runs_any(sees_metrics) and not commit.has_ended_epoch:
                self._hold_metrics(commit)
            logs = self._metrics(commit) if self._rounds.runs_any(needs_logs) else {}
            self._rounds.call_each("on_train_batch_end", last, logs)
            if self._rounds.runs_any(ends_at_nan) and not np.isfinite(commit.cursor.sums).all():
                self._rounds.call_at_nan(last, self._metrics(commit))
            yield
            at.batch += 1
            is_amid = commit.next_work is Work.TRAIN and not commit.has_ended_epoch
            at.is_cut = is_amid and (data_ended or bool(self._model.stop_training))
            if commit.has_ended_epoch or commit.next_work is Work.EVALUATE:
                self._hear_of_epoch(begun=2)
            if commit.next_work is Work.EVALUATE or (at.is_cut and commit.validates_cut):
                self._model.stop_evaluating = False
                self._rounds.call("on_test_begin")
                self._model.reset_metrics()
                at.is_in_test = True
                yield
                return
        else:
            self._show_test_batches(commit.validation or {})
            self._rounds.call("on_test_end", dict(commit.validation or {}))
            at.is_in_test = False
            yield
        if commit.has_ended_epoch or data_ended or self._model.stop_training:
            if commit.work is Work.TRAIN and not commit.has_ended_epoch:
                self._hold_metrics(commit)
            yield from self._end_epoch(commit)
            if at.is_over or commit.next_work is None:
                return
            yield from self._begin()
        else:
            self._rounds.call_each("on_train_batch_begin", at.batch, {})
            yield

    def _show_test_batches(self, logs: Mapping[str, float]) -> None:
        """Run the hooks about the batches of a validation, which is over already."""
        execution = self._execution
        for batch in range(0, self._validation_batches, execution):
            self._rounds.call_each("on_test_batch_begin", batch, {})
            last = batch + execution - 1
            self._rounds.call_each("on_test_batch_end", last, UnknownLogs(logs))
        if getattr(self._model, "stop_evaluating", False):
            raise ProgramError(
                "a callback has set model.stop_evaluating, and workers add a validation up as one: "
                "give fit() validation_steps, or fewer validation_data"
            )

    def _hear_of_epoch(self, begun: int) -> None:
        """Let the data hear that the epoch has begun, 1, or ended, 2: on all workers alike."""
        tell, epoch = self._tell_data, self._at.epoch - self._epochs.start
        if tell is not None:
            with self._rounds.guarded():
                tell(1 + 2 * epoch + begun)

    def _is_within_execution(self, commit: Commit) -> bool:
        """Return whether more steps follow before the hooks about batches; data may end before."""
        ends = commit.has_ended_epoch or commit.data_ended or commit.next_work is not Work.TRAIN
        is_step = commit.work is Work.TRAIN
        return is_step and not ends and (self._at.batch + 1) % self._execution != 0

    def _hold_metrics(self, commit: Commit) -> None:
        """Let the model's metrics hold the epoch so far; at its end they hold it in any case."""
        hold_metrics(self._replica, commit.cursor.sums, commit.cursor.ledger.samples)

    def _end_epoch(self, commit: Commit) -> Iterator[None]:
        at = self._at
        self._logs = self._epoch_logs(commit)
        self._rounds.call("on_epoch_end", at.epoch, self._logs)
        if self.tells_script:
            print(Epoch(at.epoch + 1, 0, self._logs, None, None, self._epochs.stop).line)
        at.epoch, at.batch, at.has_begun = at.epoch + 1, 0, False
        yield
        at.is_over = at.is_cut or bool(self._model.stop_training)

    def _end(self) -> Iterator[None]:
        self._rounds.call("on_train_end", self._logs)
        self._at.has_ended = True
        yield

    def _epoch_logs(self, commit: Commit) -> dict[str, float]:
        logs = dict(commit.metrics) if commit.has_ended_epoch else self._metrics(commit)
        if commit.work is Work.EVALUATE and commit.validation is not None:
            logs |= {f"val_{name}": value for name, value in commit.validation.items()}
        return logs

    def _metrics(self, commit: Commit) -> dict[str, float]:
        cursor = commit.cursor
        return self._replica.results(cursor.sums, cursor.ledger.samples)
