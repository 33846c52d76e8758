"""What the deaths of a run have in common: the same step, the same place, the same core.

Pure: it reads the fields of ``failure`` records, as the supervisor and ``holdfast report`` have
them.  Only deaths of a worker's own count, not those of workers that were killed with others.

* A *step* fails again and again if the newest deaths, two at least, happened at it.  What the
  victims were computing is named with its samples.
* A *place* (a worker id, a rank at launch or a core) is named if it has three deaths, and
  three times as many as each place has on average.  On a job of two cores no core is named:
  chance alone would do that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_DEATHS_OF_A_STEP = 2
LEAST_DEATHS_OF_A_PLACE = 3
_TIMES_THE_AVERAGE = 3
_MOST_IDS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FailingWork:
    """A microbatch, or the microbatches, that victims of one step were computing."""

    microbatch: int
    count: int
    ids: tuple[int, ...]
    is_validation: bool = False

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.ids[:_MOST_IDS_SHOWN]))
        left = self.count - min(len(self.ids), _MOST_IDS_SHOWN)
        more = f" and {left} more" if left else ""
        of = "validation samples" if self.is_validation else "samples"
        return f"microbatch {self.microbatch}, {of} {shown}{more}"


@dataclass(frozen=True, slots=True)
class RepeatedStep:
    """A step at which workers die, one after the other."""

    step: int
    workers: tuple[int, ...]
    work: tuple[FailingWork, ...]
    """What all victims were computing, else what each of them was; none if nobody knows."""

    def __str__(self) -> str:
        workers = ", ".join(map(str, self.workers))
        text = f"the step after {self.step} has killed workers {workers}"
        if not self.work:
            return text
        return f"{text} while they computed {'; '.join(map(str, self.work))}"


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
    own = [failure for failure in failures if _is_own(failure)]
    if not own:
        return None
    step = own[-1].get("step")
    newest: list[Mapping[str, Any]] = []
    for failure in reversed(own):
        if failure.get("step") != step:
            break
        newest.append(failure)
    if step is None or len(newest) < LEAST_DEATHS_OF_A_STEP:
        return None
    newest.reverse()
    workers = tuple(failure["worker"] for failure in newest)
    return RepeatedStep(step, workers, _work_of(newest))


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
            if deaths >= max(LEAST_DEATHS_OF_A_PLACE, _TIMES_THE_AVERAGE * fair):
                found.append(RepeatedPlace(kind.replace("launch_rank", "rank"), number, deaths))
    return tuple(found)


def describe_work(samples: Mapping[str, Any]) -> str:
    """Return the microbatch of a failure's ``samples``, and the samples, in words."""
    return str(_read(samples))


def _is_own(failure: Mapping[str, Any]) -> bool:
    return not failure.get("collateral", False)


def _work_of(failures: Sequence[Mapping[str, Any]]) -> tuple[FailingWork, ...]:
    """Return the work that all victims had in hand; without such, the work of each."""
    of_each = [_read(failure["samples"]) for failure in failures if failure.get("samples")]
    if len(of_each) < LEAST_DEATHS_OF_A_STEP:
        return ()
    return tuple(dict.fromkeys(of_each))


def _read(samples: Mapping[str, Any]) -> FailingWork:
    return FailingWork(
        samples["microbatch"],
        samples["count"],
        tuple(samples["ids"]),
        bool(samples["is_validation"]),
    )
