"""The page docs/messages.md has the messages between head and hosts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from holdfast.recovery.event import Event
from holdfast.runtime.hosts.wire import FromHead, FromHost

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")

_CODE = re.compile(r"`([^`\n]+)`")
MESSAGES = sorted({*get_args(FromHead), *get_args(FromHost)} - {Event}, key=str)


def _rows() -> Iterator[tuple[str, str]]:
    """Yield kinds and fields of each row of a table."""
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| ") and len(cells) == 3:
            yield cells[1], cells[2].removesuffix("|")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_row_of_a_message_between_head_and_host_has_its_fields(message: type) -> None:
    (fields,) = [fields for kinds, fields in _rows() if kinds == f"`{message.__name__}`"]
    own = [field.name for field in dataclasses.fields(message)]
    assert _CODE.findall(fields)[: len(own)] == own
    assert fields.startswith("`") == bool(own)
