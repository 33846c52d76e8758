"""``holdfast.trial``: the parameters of a trial, and its reports, alike on all workers.

The first worker that comes to a question asks the study, and writes the answer into the record of
the trial.  All others, and all later launches, read it there.  So they all train with the same
parameters, and are pruned at the same step, without a message between them.

Without ``holdfast sweep`` a script gets defaults, and is never pruned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.sweep.study import SweepStudy, TrialRecord, TrialTerms
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.standalone import standalone

_T = TypeVar("_T", bool, int, float, str)


class Trial:
    """A trial of ``holdfast sweep``, or a script that runs by itself.

    Attributes:
        number: the number of the trial in its study, None for a script that runs by itself.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self._terms = None if run_dir is None else TrialTerms.read(run_dir)
        self._record = None if run_dir is None or self._terms is None else TrialRecord(run_dir)
        self._reported: tuple[int, float] | None = None
        self.number = None if self._terms is None else self._terms.number

    def suggest_float(
        self,
        name: str,
        low: float,
        high: float,
        *,
        step: float | None = None,
        log: bool = False,
        default: float | None = None,
    ) -> float:
        """Return a number between two others; alone ``default``, or the middle."""
        middle = math.sqrt(low * high) if log else (low + high) / 2
        terms = {"low": low, "high": high, "step": step, "log": log}
        return float(self._suggested(name, "float", terms, middle if default is None else default))

    def suggest_int(
        self,
        name: str,
        low: int,
        high: int,
        *,
        step: int = 1,
        log: bool = False,
        default: int | None = None,
    ) -> int:
        """Return a whole number from one to another; alone ``default``, or the middle."""
        middle = round(math.sqrt(low * high)) if log else low + (high - low) // step // 2 * step
        terms = {"low": low, "high": high, "step": step, "log": log}
        return int(self._suggested(name, "int", terms, middle if default is None else default))

    def suggest_categorical(
        self, name: str, choices: Sequence[_T], *, default: _T | None = None
    ) -> _T:
        """Return one of several values; alone ``default``, or the first."""
        alone = choices[0] if default is None else default
        found: _T = self._suggested(name, "categorical", {"choices": list(choices)}, alone)
        return found

    def report(self, value: float, step: int) -> None:
        """Report a value of the objective at a step; the last one is the trial's, if none is told.

        Every worker reports the same: metrics are alike on all.
        """
        self._reported = int(step), float(value)
        if self._record is not None:
            _beside_hooks(self._record.report, *self._reported)

    def should_prune(self) -> bool:
        """Return whether the trial is to end early, as its study says of the last report.

        All workers get the same answer at the same step.  After True the script ends its training
        and itself; the study then has the trial as pruned.
        """
        record, number = self._record, self.number
        if record is None or number is None or self._reported is None:
            return False
        step, value = self._reported
        is_pruned = bool(
            self._decided(f"prune {step}", lambda: self._study.prunes(number, value, step))
        )
        if is_pruned:
            _beside_hooks(record.prune, step)
        return is_pruned

    def tell(self, value: float) -> None:
        """Tell the trial's value; without it, it is the one that was reported last."""
        if self._record is not None:
            _beside_hooks(self._record.tell, float(value))

    def callback(self, monitor: str = "val_loss") -> Any:
        """Return a callback for Keras's ``fit`` that reports a metric each epoch, and prunes.

        A trial that is pruned ends its training after the epoch, and ``fit`` returns.
        """
        import keras

        trial = self

        class TrialPruning(keras.callbacks.Callback):  # type: ignore[misc]
            """Reports a metric of each epoch to the trial, and ends a training that is pruned."""

            def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
                """Report; stop if the trial is pruned."""
                value = (logs or {}).get(monitor)
                if value is None:
                    known = ", ".join(sorted(logs or {})) or "none"
                    raise ProgramError(
                        f"trial().callback({monitor!r}) finds no such metric; "
                        f"this epoch has {known}"
                    )
                trial.report(float(value), epoch)
                if trial.should_prune():
                    self.model.stop_training = True

        return TrialPruning()

    @functools.cached_property
    def _study(self) -> SweepStudy:
        assert self._terms is not None
        return SweepStudy(self._terms.study)

    def _suggested(self, name: str, kind: str, terms: dict[str, Any], alone: Any) -> Any:
        number = self.number
        if number is None:
            return alone

        def suggest() -> Any:
            try:
                return self._study.suggest(number, name, kind, terms)
            except (TypeError, ValueError) as error:
                raise ProgramError(f"trial().suggest_{kind}({name!r}, ...): {error}") from error

        return self._decided(f"parameter {name}", suggest)

    def _decided(self, key: str, decide: Callable[[], Any]) -> Any:
        """Return what stands in the record for a key; the first worker to come decides."""
        assert self._record is not None
        lines = self._record.lines

        def find() -> Any:
            found = lines.find(key)
            if found is not None:
                return found
            with lines.turn():
                found = lines.find(key)  # another one may have had its turn before
                return lines.first(key, decide()) if found is None else found

        return _beside_hooks(find)


@functools.cache
def trial() -> Trial:
    """Return the trial of this script: that of ``holdfast sweep``, or one with defaults."""
    if not contexts.is_worker():
        return Trial(None)
    return Trial(contexts.current(otherwise=standalone).run_dir)


def _beside_hooks(act: Callable[..., Any], *values: Any) -> Any:
    """Do something in a thread of its own: hooks of callbacks write no real files but the first's.

    Threads are also outside of the script's clock and draws.
    """
    with ThreadPoolExecutor(1, "holdfast-trial") as pool:
        return pool.submit(act, *values).result()
