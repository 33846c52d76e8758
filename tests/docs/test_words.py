"""Words that name nobody stay out of documentation and source."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*.md", "docs/**/*.md", *(f"{top}/**/*.md" for top in ("api", "ci", "bench", "tests")))
SOURCES = ("api", "runtime", "checkpoint", "recovery")
VAGUE = re.compile(r"\b(whoever|whatever|whichever|somebody)\b", re.IGNORECASE)
ALLOWED = "whatever dies"
"""The promise."""
HISTORY = "CHANGELOG.md"


def texts() -> list[Path]:
    found = [path for place in PLACES for path in sorted(ROOT.glob(place))]
    for source in SOURCES:
        found += sorted(ROOT.glob(f"{source}/**/*.py")) + sorted(ROOT.glob(f"{source}/**/*.md"))
    return sorted({path for path in found if path.name != HISTORY})


def vague_lines(text: str) -> list[str]:
    lines = text.splitlines()
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if VAGUE.search(line) and ALLOWED not in line.lower()
    ]


def test_sentences_name_who_and_what() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in texts()
        if (lines := vague_lines(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_vague_words_are_found() -> None:
    text = "Whoever reads it.\nWhatever dies, the run goes on.\nTake whichever is there."
    assert vague_lines(text) == ["1: Whoever reads it.", "3: Take whichever is there."]
