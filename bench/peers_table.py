"""What bench/peers.py has measured: its tables, as Markdown, and a picture, as SVG.

A ratio is the median, with minimum and maximum, of the rounds in which both ways were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness import Record, Spread
from peers_ways import HOST

TITLES = {
    "dnn": "dnn, 0.67 M",
    "cnn": "cnn, 1.76 M",
    "mlp": "mlp, 24 M",
    "transformer": "transformer, 25 M",
    "mlp-adam": "mlp, Adam",
    "transformer-adam": "transformer, Adam",
    "pipeline": "dnn, tf.data pipeline",
    "cifar": "cifar, 1.07 M",
}
PARAMETERS = {"mlp-adam": 24_202_250}
SPEED, START, MEMORY, MOST = "samples/s", "first step, s", "memory, bytes", "most memory, bytes"
NAMES = {
    "ours-2": "holdfast, 2 workers",
    "tape": "Horovod, tape",
    "tape-yielding": "Horovod, tape, yielding",
    "fit": "Horovod, fit",
    "mpi4py": "bare mpi4py loop",
    "two-plain": "2 plain processes",
    "servers-sync": "servers, synchronous",
    "servers-async": "servers, asynchronous",
    "ours-1": "holdfast, 1 worker",
    "plain": "plain Keras",
}
RATIOS = {
    ("ours-2", "tape"): "÷ Horovod, tape",
    ("ours-2", "tape-yielding"): "÷ the same, yielding",
    ("ours-2", "fit"): "÷ Horovod, fit",
    ("ours-2", "mpi4py"): "÷ bare mpi4py",
    ("ours-2", "two-plain"): "÷ 2 plain processes",
    ("ours-1", "plain"): "1 worker ÷ plain",
    ("ours-2", "ours-1"): "2 workers ÷ 1",
    ("two-plain", "plain"): "2 plain processes ÷ 1",
    ("ours-2", "servers-sync"): "÷ parameter servers, synchronous",
    ("ours-2", "servers-async"): "÷ the same, asynchronous",
}
"""What is compared, with the head of its column."""

Rounds = Mapping[int, float]
"""A value of each round."""
Row = Sequence[str | Spread | None]


class Cell(NamedTuple):
    """What ways are compared in: a model, the link of two workers, and the batch of one."""

    model: str
    link: str
    batch: int

    def text(self) -> str:
        """Return what stands before its row."""
        link = "" if self.link == HOST else f", {self.link} Gbit/s"
        return f"{TITLES[self.model]}{link}" + (f", batch {self.batch}" if self.batch else "")


class Figures:
    """The values that were measured, by what they are of."""

    def __init__(self, record: Record) -> None:
        self._rounds: dict[tuple[str, Cell, str], dict[int, float]] = defaultdict(dict)
        for each in record["figures"]:
            cell = Cell(each["model"], each["link"], each["batch"])
            self._rounds[each["what"], cell, each["way"]][each["round"]] = each["value"]

    def cells(self, what: str) -> list[Cell]:
        """Return the cells in which this was measured: one host first, then in the order made."""
        found = dict.fromkeys(cell for each, cell, _ in self._rounds if each == what)
        models = list(TITLES)
        return sorted(found, key=lambda cell: (cell.link != HOST, models.index(cell.model), cell))

    def rounds(self, what: str, cell: Cell, way: str) -> Rounds:
        """Return the values of a way, none if it was not measured."""
        return self._rounds.get((what, cell, way), {})

    def ratio(self, what: str, cell: Cell, ours: str, peer: str) -> Spread | None:
        """Return what ``ours`` has in units of ``peer``, None if they share no round."""
        mine, theirs = self.rounds(what, cell, ours), self.rounds(what, cell, peer)
        both = [mine[number] / theirs[number] for number in mine if number in theirs]
        return Spread.of(both) if both else None


def markdown(record: Record) -> str:
    """Return the tables, behind a line that says when, where and by which command."""
    figures = Figures(record)
    about = f"{record['date']}, {record['machine']}: `{'`, `'.join(record['commands'])}`."
    return "\n\n".join([about, *_speeds(figures), *_starts(figures), *_memories(figures)])


def _speeds(figures: Figures) -> Iterator[str]:
    for where, is_one in (("one host", True), ("two hosts", False)):
        cells = [cell for cell in figures.cells(SPEED) if (cell.link == HOST) is is_one]
        shown = [p for p in RATIOS if any(figures.ratio(SPEED, cell, *p) for cell in cells)]
        if cells:
            rows: list[Row] = [
                [
                    cell.text(),
                    _median(figures.rounds(SPEED, cell, "ours-2")),
                    *(figures.ratio(SPEED, cell, *pair) for pair in shown),
                ]
                for cell in cells
            ]
            head = [f"samples/s on {where}", NAMES["ours-2"], *(RATIOS[pair] for pair in shown)]
            yield _table(head, rows)


def _starts(figures: Figures) -> Iterator[str]:
    rows: list[Row] = [
        [
            cell.text(),
            f"{_median(figures.rounds(START, cell, 'ours-1'), 1)} s",
            figures.ratio(START, cell, "ours-1", "plain"),
        ]
        for cell in figures.cells(START)
    ]
    if rows:
        yield _table(["until the first step has ended", NAMES["ours-1"], "÷ plain"], rows)


def _memories(figures: Figures) -> Iterator[str]:
    for cell in figures.cells(MEMORY):
        head = f"memory of all processes ÷ weights, {cell.text()}"
        rows: list[Row] = [
            [
                NAMES[way],
                _median(figures.rounds(MEMORY, cell, way), 1, 4 * PARAMETERS[cell.model]),
                figures.ratio(MEMORY, cell, way, "tape"),
                _median(figures.rounds(MOST, cell, way), 1, 4 * PARAMETERS[cell.model]),
            ]
            for way in NAMES
            if figures.rounds(MEMORY, cell, way)
        ]
        yield _table([head, "while it trains", "÷ Horovod, tape", "at most"], rows)


def _table(head: Sequence[str], rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)


def _text(value: str | Spread | None) -> str:
    return value.text() if isinstance(value, Spread) else value or ""


def _median(rounds: Rounds, digits: int = 0, unit: float = 1) -> str:
    return f"{Spread.of(list(rounds.values())).median / unit:,.{digits}f}" if rounds else ""


WIDTH, LABEL, BAR = 920, 210, 14
"""Of the picture, in pixels: all, the names at its left, and a bar with its space."""
COLOURS = {
    "ours-2": "#2f6f9f",
    "tape": "#c9772b",
    "tape-yielding": "#a85f1f",
    "fit": "#e0b07a",
    "mpi4py": "#8a6fa8",
    "servers-sync": "#6b8e4e",
    "servers-async": "#a3bd8b",
    "two-plain": "#b8c4ce",
}


def picture(record: Record) -> str:
    """Return bars of each way's speed in units of Horovod's tape, as SVG."""
    figures = Figures(record)
    cells = {
        cell: {way: ratio for way in COLOURS if (ratio := figures.ratio(SPEED, cell, way, "tape"))}
        for cell in figures.cells(SPEED)
    }
    most = max((ratio.median for ways in cells.values() for ratio in ways.values()), default=1.0)
    marks, y = [], BAR
    for place, (way, colour) in enumerate(COLOURS.items()):
        x = 4 + place * (WIDTH - 8) / len(COLOURS)
        marks += [_bar(x, 4, 10, colour), _words(x + 14, 13, NAMES[way])]
    for cell, ways in cells.items():
        y += BAR if ways else 0
        for place, (way, ratio) in enumerate(ways.items()):
            wide = (WIDTH - LABEL - 40) * ratio.median / most
            marks += [] if place else [_words(4, y + BAR - 4, cell.text())]
            marks += [_bar(LABEL, y, wide, COLOURS[way])]
            marks += [_words(LABEL + wide + 4, y + BAR - 4, f"{ratio.median:.2f}")]
            y += BAR
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        'font-family="sans-serif" font-size="11">'
        f'<rect width="{WIDTH}" height="{y}" fill="white"/>{"".join(marks)}</svg>\n'
    )


def _bar(x: float, y: float, wide: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y}" width="{wide:.0f}" height="{BAR - 3}" fill="{colour}"/>'


def _words(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="#222">{text}</text>'
