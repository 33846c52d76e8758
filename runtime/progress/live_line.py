"""The words of the live line, as many as fit into a terminal.

Each part has a rank.  A narrow terminal loses the parts of the highest ranks first.  Colours
are not decided here: a part has a style, and who draws it knows what that means.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.runtime.progress import words
from holdfast.runtime.progress.picture import STARTING, TRAINING, Picture
from holdfast.runtime.progress.step_report import StepReport

GAP = "  "
_BAR_CELLS = 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the line; ``done`` is the share of a bar that is full, None for words."""

    text: str
    rank: int
    style: str = "plain"
    done: float | None = None


def live_line(picture: Picture, now: float, columns: int) -> tuple[Part, ...]:
    """Return the parts of the line at the monotonic second ``now`` that fit into ``columns``."""
    return fitting(tuple(_parts(picture, now)), columns)


def fitting(parts: Sequence[Part], columns: int) -> tuple[Part, ...]:
    """Return the parts that fit, in their order; one word always stays, and may be cut."""
    kept = list(parts)
    while len(kept) > 1 and _width(kept) > columns:
        kept.remove(max(kept, key=lambda part: part.rank))
    if kept and _width(kept) > columns:
        return (Part(kept[0].text[: max(0, columns)], kept[0].rank, kept[0].style),)
    return tuple(kept)


def _width(parts: Sequence[Part]) -> int:
    return sum(words.columns(part.text) for part in parts) + len(GAP) * max(0, len(parts) - 1)


def _parts(picture: Picture, now: float) -> Iterator[Part]:
    report = picture.report
    if report is None:
        yield Part(picture.phase or STARTING, 0, "phase")
        yield _workers(picture)
        return
    if report.stage > 1:
        yield Part(f"fit {report.stage}", 8, "quiet")
    yield Part(f"epoch {report.epoch}/{report.epochs}", 0, "epoch")
    yield Part(" " * _BAR_CELLS, 10, "bar", done=_share(report))
    of = f"/{report.steps_per_epoch}" if report.steps_per_epoch else ""
    yield Part(f"{report.step_of_epoch}{of}", 2)
    if picture.phase not in (None, TRAINING):
        yield Part(words.phase(str(picture.phase)), 1, "phase")
    if picture.pace.per_s:
        yield Part(words.rate(picture.pace.per_s), 4)
    if picture.left_s is not None:
        yield Part(f"{words.duration(picture.left_s)} left", 6)
    for rank, text in zip(_metric_ranks(), words.metrics(report.metrics), strict=False):
        yield Part(text, rank, "metric")
    yield _workers(picture)
    next_save = picture.next_save(now)
    if next_save is not None:
        yield Part(f"save {next_save}", 9, "quiet")


def _metric_ranks() -> Iterator[int]:
    """Yield the rank of each metric: first the loss, two more, then those that go first."""
    yield from (3, 7, 8)
    yield from itertools.count(11)


def _workers(picture: Picture) -> Part:
    """Return the workers that live; fewer than were launched are worth a second look."""
    if picture.living == picture.wanted:
        return Part(words.count(picture.wanted, "worker"), 9, "quiet")
    style = "quiet" if picture.phase == STARTING else "loss"
    return Part(f"{picture.living} of {words.count(picture.wanted, 'worker')}", 5, style)


def _share(report: StepReport) -> float:
    if not report.steps_per_epoch:
        return 0.0
    return min(1.0, report.step_of_epoch / report.steps_per_epoch)
