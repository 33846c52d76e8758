"""The study of a sweep, in a storage that Optuna and its dashboard open, and the record of a trial.

Invariant: a trial of a sweep has the sweep's directory among its attributes from its first moment.
So a sweep that was killed finds all of its trials again, and takes none of another sweep.

A trial has files in its run directory, for its workers and for the sweep::

    RUN_DIR/trial-7/trial.json     the terms of the trial, written once before its job
    RUN_DIR/trial-7/trial.jsonl    its parameters, reports and decisions: the first of each counts
    RUN_DIR/trial-7/output.log     what its job says

All else there is an ordinary run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import write_whole
from holdfast.runtime.run.script_record import ScriptRecord

SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler"}
PRUNERS = {
    "median": "MedianPruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "none": "NopPruner",
}
"""Optuna's classes by the names that users give."""

DIRECTIONS = ("minimize", "maximize")
OUTPUT = "output.log"
_TERMS, _RECORD = "trial.json", "trial.jsonl"
_VALUE, _PRUNED, _LAST = "value", "pruned", "last report"
_SWEEP = "sweep"
_SQLITE_WAITS_S = 60.0
"""All trials write to one file, which has one writer at a time."""

Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StudyTerms:
    """What every process of a sweep needs to know to open its study."""

    storage: str
    name: str
    direction: str = "minimize"
    sampler: str = "tpe"
    pruner: str = "median"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TrialView:
    """A trial as the study has it; ``state`` is Optuna's word in small letters."""

    number: int
    state: str
    value: float | None
    parameters: Values
    attributes: Values


class SweepStudy:
    """The study of one sweep; Optuna is imported here.

    Raises:
        UsageError: Optuna is not installed, or the storage cannot be opened.
    """

    def __init__(self, terms: StudyTerms) -> None:
        try:
            import optuna
        except ImportError as error:
            raise UsageError(
                "holdfast sweep needs Optuna, which is not installed: pip install optuna"
            ) from error
        self._terms = terms
        self._optuna: Any = optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage: Any = terms.storage
        shown = re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", terms.storage)  # without its password
        try:
            if storage.startswith("sqlite"):
                waits = {"connect_args": {"timeout": _SQLITE_WAITS_S}}
                storage = optuna.storages.RDBStorage(storage, engine_kwargs=waits)
            self._study = self._optuna.create_study(
                storage=storage,
                study_name=terms.name,
                direction=terms.direction,
                load_if_exists=True,
            )
        except Exception as error:  # of Optuna, of SQLAlchemy, or of a driver that is missing
            first = f"{type(error).__name__}: {error}".partition("\n")[0]
            why = first.replace(terms.storage, shown)
            raise UsageError(
                f"--study {shown} cannot be opened: {why}; give a URL of a database, such as "
                "sqlite:///sweep.db"
            ) from error
        found = self._study.direction.name.lower()
        if found != terms.direction:
            raise UsageError(
                f"the study {terms.name!r} in {shown} is to {found}, and --direction says "
                f"{terms.direction}; leave it alike, or name another study with --name"
            )

    def trials(self, sweep: str) -> list[TrialView]:
        """Return all trials of a sweep, by their numbers."""
        return [
            TrialView(
                trial.number, trial.state.name.lower(), trial.value, trial.params, trial.user_attrs
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.user_attrs.get(_SWEEP) == sweep
        ]

    def begin(self, sweep: str) -> int:
        """Begin a trial; return its number."""
        before = {trial.number for trial in self.trials(sweep)}
        running = self._optuna.trial.TrialState.RUNNING
        self._study.add_trial(
            self._optuna.trial.create_trial(state=running, user_attrs={_SWEEP: sweep})
        )
        return max(trial.number for trial in self.trials(sweep) if trial.number not in before)

    def end(self, number: int, state: str, value: float | None, attributes: Values) -> None:
        """End a trial, with what is to be known of it; one that has ended stays as it is."""
        trial = self._trial(number)
        if trial.state.is_finished():
            return
        for name, attribute in attributes.items():
            self._study._storage.set_trial_user_attr(trial._trial_id, name, attribute)
        state_of = self._optuna.trial.TrialState
        self._study.tell(number, value, state=state_of[state.upper()], skip_if_finished=True)

    def suggest(self, number: int, name: str, kind: str, terms: Values) -> Any:
        """Return a parameter of a trial; what the study has already stays.

        Its sampler has a seed of its own, so every process that asks gets the same.
        """
        text = f"{self._terms.seed}/{number}/{name}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        sampler = getattr(self._optuna.samplers, SAMPLERS[self._terms.sampler])
        self._study.sampler = sampler(seed=seed)
        asked = self._optuna.trial.Trial(self._study, self._trial(number)._trial_id)
        return getattr(asked, f"suggest_{kind}")(name, **terms)

    def prunes(self, number: int, value: float, step: int) -> bool:
        """Report a value of a trial; return whether it is to be pruned."""
        trial = self._trial(number)
        if trial.state.is_finished():
            return False
        if step not in trial.intermediate_values:
            self._study._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        self._study.pruner = getattr(self._optuna.pruners, PRUNERS[self._terms.pruner])()
        # NaN is worse than everything: pruners say so themselves.
        return bool(self._optuna.trial.Trial(self._study, trial._trial_id).should_prune())

    def best(self, sweep: str) -> TrialView | None:
        """Return the best complete trial of a sweep, None without one."""
        sign = 1 if self._terms.direction == "minimize" else -1
        complete = [trial for trial in self.trials(sweep) if trial.state == "complete"]
        return min(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def _trial(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]


@dataclass(frozen=True, slots=True)
class TrialTerms:
    """One trial of a study."""

    study: StudyTerms
    number: int

    def write(self, run_dir: Path) -> None:
        """Write the terms, which may hold a password of a database."""
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / _TERMS, json.dumps(asdict(self)).encode(), mode=0o600)

    @staticmethod
    def read(run_dir: Path) -> TrialTerms | None:
        """Return the terms of the trial whose run lives in a directory, None if it is no trial."""
        try:
            found = json.loads((run_dir / _TERMS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return TrialTerms(StudyTerms(**found["study"]), found["number"])


class TrialRecord:
    """What was decided in a trial, for all of its workers and launches."""

    def __init__(self, run_dir: Path) -> None:
        self.lines = ScriptRecord(run_dir / _RECORD)

    @property
    def value(self) -> float | None:
        """The value that the script has told, else the one that it has reported last."""
        told = self.lines.find(_VALUE)
        if told is not None:
            return float(told)
        last = self.lines.largest(_LAST)
        reported = None if last is None else self.lines.find(f"report {int(last)}")
        return None if reported is None else float(reported)

    @property
    def is_pruned(self) -> bool:
        """Whether the trial ends early, as its study has said."""
        return self.lines.find(_PRUNED) is not None

    def tell(self, value: float) -> None:
        """Take note of the trial's value."""
        self.lines.first(_VALUE, value)

    def report(self, step: int, value: float) -> None:
        """Take note of what a step has reported."""
        self.lines.first(f"report {step}", value)
        self.lines.reach(_LAST, step)

    def prune(self, step: int) -> None:
        """Take note of the step at which the trial ends early."""
        self.lines.first(_PRUNED, step)
