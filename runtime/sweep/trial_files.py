"""What a trial keeps in its run directory, for its workers and for the sweep.

::

    RUN_DIR/trial-7/trial.json     the terms of the trial, written once before its job
    RUN_DIR/trial-7/trial.jsonl    its parameters, reports and decisions: the first of each counts
    RUN_DIR/trial-7/output.log     what its job says

All else there is an ordinary run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.sweep.study import StudyTerms

OUTPUT = "output.log"

_TERMS, _RECORD = "trial.json", "trial.jsonl"
_VALUE, _PRUNED, _LAST = "value", "pruned", "last report"


@dataclass(frozen=True, slots=True)
class TrialTerms:
    """One trial of a study."""

    study: StudyTerms
    number: int

    def write(self, run_dir: Path) -> None:
        """Write the terms, which may hold a password of a database."""
        run_dir.mkdir(parents=True, exist_ok=True)
        part = run_dir / f".{_TERMS}"
        part.touch(mode=0o600)
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(run_dir / _TERMS)

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
