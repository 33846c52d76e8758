"""A trial in a script: defaults alone, and in a sweep the same answers for all that ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ProgramError, Trial, UsageError
from holdfast.runtime.sweep.study import StudyTerms, SweepStudy, TrialRecord, TrialTerms

SWEEP = "/runs/sweep"


def terms_in(directory: Path, **changed: Any) -> StudyTerms:
    terms = StudyTerms(f"sqlite:///{directory / 's.db'}", "s")
    return replace(terms, **changed)


def begin(study: SweepStudy, terms: StudyTerms, directory: Path) -> Path:
    number = study.begin(SWEEP)
    run_dir = directory / f"trial-{number}"
    TrialTerms(terms, number).write(run_dir)
    return run_dir


@pytest.mark.parametrize(
    ("kind", "arguments", "value"),
    [
        ("float", {"low": 0.0, "high": 1.0}, 0.5),
        ("float", {"low": 1e-4, "high": 1e-2, "log": True}, 1e-3),
        ("float", {"low": 0.0, "high": 1.0, "default": 0.25}, 0.25),
        ("int", {"low": 2, "high": 8}, 5),
        ("int", {"low": 2, "high": 9, "step": 3}, 5),
        ("int", {"low": 1, "high": 64, "log": True}, 8),
        ("int", {"low": 1, "high": 64, "default": 3}, 3),
        ("categorical", {"choices": ["a", "b"]}, "a"),
        ("categorical", {"choices": ["a", "b"], "default": "b"}, "b"),
    ],
)
def test_a_script_alone_gets_defaults(
    kind: str, arguments: dict[str, object], value: object
) -> None:
    trial = holdfast.trial()

    assert getattr(trial, f"suggest_{kind}")("one", **arguments) == pytest.approx(value)
    assert trial.number is None


def test_a_script_alone_is_never_pruned() -> None:
    trial = holdfast.trial()
    trial.report(1e9, 0)

    assert not trial.should_prune()


def test_workers_and_relaunches_get_the_parameters_of_the_first_that_asked(tmp_path: Path) -> None:
    terms = terms_in(tmp_path)
    run_dir = begin(SweepStudy(terms), terms, tmp_path)

    def ask(trial: Trial) -> list[object]:
        return [
            trial.suggest_float("rate", 1e-4, 1.0, log=True),
            trial.suggest_int("units", 1, 1000),
            trial.suggest_categorical("kind", ["a", "b", "c"]),
        ]

    first = ask(Trial(run_dir))
    (tmp_path / "s.db").unlink()  # another launch needs no study for them

    assert ask(Trial(run_dir)) == first


def test_parameters_depend_on_seed_trial_and_name_and_not_on_who_asks(tmp_path: Path) -> None:
    drawn = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        terms = terms_in(tmp_path / folder)
        study = SweepStudy(terms)
        trials = [Trial(begin(study, terms, tmp_path / folder)) for _ in range(2)]
        names = ["x", "y"] if folder == "one" else ["y", "x"]
        asked = {(t.number, n): t.suggest_float(n, 0.0, 1.0) for t in trials for n in names}
        drawn.append(asked)

    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == 4


def test_all_workers_are_pruned_at_the_same_step(tmp_path: Path) -> None:
    terms = terms_in(tmp_path)
    study = SweepStudy(terms)
    for _ in range(5):  # as many as the median waits for
        run_dir = begin(study, terms, tmp_path)
        good = Trial(run_dir)
        for step in range(3):
            good.report(1.0, step)
            assert not good.should_prune()
        study.end(good.number or 0, "complete", TrialRecord(run_dir).value, {})
    run_dir = begin(study, terms, tmp_path)
    workers = Trial(run_dir), Trial(run_dir)

    for worker in workers:
        worker.report(2.0, 0)
    answers = [workers[0].should_prune()]
    (tmp_path / "s.db").unlink()  # the other worker does not ask again

    assert [*answers, workers[1].should_prune()] == [True, True]
    assert TrialRecord(run_dir).is_pruned


def test_a_told_value_is_that_of_the_trial(tmp_path: Path) -> None:
    terms = terms_in(tmp_path)
    run_dir = begin(SweepStudy(terms), terms, tmp_path)
    trial, record = Trial(run_dir), TrialRecord(run_dir)

    assert record.value is None
    trial.report(3.0, 0)
    trial.report(2.0, 1)
    assert record.value == 2.0
    trial.tell(7.0)
    assert record.value == 7.0


def test_a_parameter_with_another_range_is_the_scripts_error(tmp_path: Path) -> None:
    terms = terms_in(tmp_path)
    trial = Trial(begin(SweepStudy(terms), terms, tmp_path))

    with pytest.raises(ProgramError, match=r"suggest_float\('rate', \.\.\.\): "):
        trial.suggest_float("rate", 1.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"direction": "maximize"}, "is to minimize, and --direction says maximize"),
        ({"storage": "nowhere://s"}, r"--study nowhere://s cannot be opened: "),
        ({"storage": "nowhere://ann:key@s"}, r"--study nowhere://ann:\*\*\*@s cannot be opened: "),
    ],
)
def test_a_study_that_cannot_be_used_is_refused(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    SweepStudy(terms_in(tmp_path))

    with pytest.raises(UsageError, match=message):
        SweepStudy(terms_in(tmp_path, **changed))
