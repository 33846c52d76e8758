from __future__ import annotations

import pytest

from holdfast.runtime.batch.sbatch import clock_s, read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("15min", 900.0), ("1.5 h", 5400.0),
        ("2d", 172_800.0), ("1:30", 90.0), ("2:00:00", 7200.0), ("1-12:00:00", 129_600.0),
    ],
)  # fmt: skip
def test_duration_is_read(text: object, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1:2:3:4", "nan", "inf", True, None])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a time; give seconds"):
        read_duration(text)


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "90"])
def test_words_of_squeue_are_no_time(text: str) -> None:
    assert clock_s(text) is None
