"""What the deaths of a run have in common: the same step, the same place, the same core.

Pure: it reads the fields of ``failure`` records, as the head and ``holdfast report`` have
them.  Only deaths of a worker's own count, not those of workers that were killed with others.

* A *step* fails again and again if the newest deaths, two at least, happened at it.  What the
  victims were computing is named with its samples.  Deaths before any step accuse none.
* *Samples* are named if the newest deaths, three at least, of different microbatches had them
  in hand: a sample comes back in each epoch, in other company.
* A *place* is a worker id, a rank at launch or a core.  It is named if it has three deaths, and
  three times as many as each place has on average.  On a job of two cores no core is named: chance
  alone would do that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LEAST_DEATHS_OF_A_STEP = 2
_LEAST_DEATHS_OF_SAMPLES = 3
_LEAST_DEATHS_OF_A_PLACE = 3
_TIMES_THE_AVERAGE = 3
_MOST_IDS_SHOWN = 20
_BEFORE_ALL_STEPS = frozenset({"starting", "joining", "restoring"})


@dataclass(frozen=True, slots=True)
class FailingWork:
    """A microbatch, or the microbatches, that victims of one step were computing."""

    microbatch: int
    count: int
    ids: tuple[int, ...]
    is_validation: bool = False

    def __str__(self) -> str:
        of = "validation samples" if self.is_validation else "samples"
        return f"microbatch {self.microbatch}, {of} {_listed(self.ids, self.count)}"


@dataclass(frozen=True, slots=True)
class RepeatedStep:
    """A step at which workers die, one after the other."""

    step: int
    """The update that is not applied, counted from 1."""
    workers: tuple[int, ...]
    work: tuple[FailingWork, ...]
    """What the victims were computing, each only once; none if that is not known."""

    def __str__(self) -> str:
        workers = ", ".join(map(str, self.workers))
        text = f"step {self.step} has killed workers {workers}"
        if not self.work:
            return text
        return f"{text} while they computed {'; '.join(map(str, self.work))}"


@dataclass(frozen=True, slots=True)
class RepeatedSamples:
    """Samples that each of the newest victims was computing, in different microbatches."""

    ids: tuple[int, ...]
    workers: tuple[int, ...]

    def __str__(self) -> str:
        workers = ", ".join(map(str, self.workers))
        samples = _listed(self.ids, len(self.ids))
        return f"each of workers {workers} died while it computed samples {samples}"


@dataclass(frozen=True, slots=True)
class RepeatedPlace:
    """A worker id, a rank or a core whose workers die again and again."""

    kind: str
    number: int
    deaths: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} has lost {self.deaths} workers"


def repeated_step(failures: Sequence[Mapping[str, Any]]) -> RepeatedStep | None:
    """Return the step at which the newest deaths happened, None if they have none in common."""
    own = [failure for failure in failures if _is_own(failure) and _has_begun(failure)]
    newest: list[Mapping[str, Any]] = []
    for failure in reversed(own):
        if _step_of(failure) != _step_of(own[-1]):
            break
        newest.insert(0, failure)
    if len(newest) < _LEAST_DEATHS_OF_A_STEP:
        return None
    workers = tuple(failure["worker"] for failure in newest)
    return RepeatedStep(_step_of(own[-1]), workers, _work_of(newest))


def repeated_samples(failures: Sequence[Mapping[str, Any]]) -> RepeatedSamples | None:
    """Return the samples that all of the newest victims had in hand, None if there are none."""
    own = [failure for failure in failures if _is_own(failure)]
    common: set[int] = set()
    newest: list[Mapping[str, Any]] = []
    for failure in reversed(own):
        work = _training_of(failure)
        if work is None or (newest and common.isdisjoint(work.ids)):
            break
        common = common & set(work.ids) if newest else set(work.ids)
        newest.insert(0, failure)
    different = {_training_of(failure) for failure in newest}
    if len(newest) < _LEAST_DEATHS_OF_SAMPLES or len(different) < 2:
        return None
    return RepeatedSamples(tuple(sorted(common)), tuple(f["worker"] for f in newest))


def repeated_places(
    failures: Iterable[Mapping[str, Any]], *, ranks: int, cores: int
) -> tuple[RepeatedPlace, ...]:
    """Return the places that die far more often than the others of ``ranks`` and ``cores``."""
    own = [failure for failure in failures if _is_own(failure)]
    found: list[RepeatedPlace] = []
    for kind, places in (("launch_rank", ranks), ("core", cores)):
        counts = Counter(failure[kind] for failure in own if failure.get(kind) is not None)
        fair = sum(counts.values()) / max(1, places)
        for number, deaths in counts.most_common():
            if deaths >= max(_LEAST_DEATHS_OF_A_PLACE, _TIMES_THE_AVERAGE * fair):
                found.append(RepeatedPlace(kind.replace("launch_rank", "rank"), number, deaths))
    return tuple(found)


def describe_work(samples: Mapping[str, Any]) -> str:
    """Return the microbatch of a failure's ``samples``, and the samples, in words."""
    return str(_read(samples))


def _listed(ids: Sequence[int], count: int) -> str:
    shown = ", ".join(map(str, ids[:_MOST_IDS_SHOWN]))
    left = count - min(len(ids), _MOST_IDS_SHOWN)
    return f"{shown} and {left} more" if left else shown


def _is_own(failure: Mapping[str, Any]) -> bool:
    return not failure.get("collateral", False)


def _has_begun(failure: Mapping[str, Any]) -> bool:
    """Return whether the victim had come to a step: before that no step can have killed it."""
    return failure.get("phase") not in _BEFORE_ALL_STEPS


def _step_of(failure: Mapping[str, Any]) -> int:
    """Return the update that the victim was working on, or working towards."""
    return int(failure.get("step") or 0) + 1


def _training_of(failure: Mapping[str, Any]) -> FailingWork | None:
    work = _read(failure["samples"]) if failure.get("samples") else None
    return None if work is None or work.is_validation else work


def _work_of(failures: Sequence[Mapping[str, Any]]) -> tuple[FailingWork, ...]:
    """Return the work of each victim that had some in hand, equal ones once."""
    of_each = (_read(failure["samples"]) for failure in failures if failure.get("samples"))
    return tuple(dict.fromkeys(of_each))


def _read(samples: Mapping[str, Any]) -> FailingWork:
    return FailingWork(
        samples["microbatch"],
        samples["count"],
        tuple(samples["ids"]),
        bool(samples["is_validation"]),
    )
