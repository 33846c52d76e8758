"""The course of a run: every sample, second, worker and death has its place on one time line."""

from __future__ import annotations

import pytest
from journal_entries import line
from told_run import told_lines, told_run

from holdfast.runtime.tools.course import Memory
from holdfast.runtime.tools.summary import parts_of


def test_moments_are_seconds_of_the_wall_time() -> None:
    course = told_run().course

    assert course.wall_s == 30
    assert [failure.worker for _, failure in course.deaths] == [2, 0, 1]
    assert [at_s for at_s, _ in course.deaths] == pytest.approx([8.25, 10.5, 10.6])


def test_no_sample_is_lost_between_bins() -> None:
    course = told_run().course

    taken = sum(course.samples_per_s) * course.bin_s

    assert taken == pytest.approx(13 * 8)  # step 6 was taken twice


def test_workers_train_from_the_world_on_until_they_die() -> None:
    moments, workers = zip(*told_run().course.workers, strict=True)

    assert moments == pytest.approx([0, 4, 8.25, 10.5, 10.6, 17, 30, 30])
    assert workers == (0, 3, 2, 1, 0, 3, 0, 0)


def test_time_between_two_jobs_is_on_no_line() -> None:
    lines = told_lines()
    later = [{**line, "now": line["now"] + 5000} for line in lines]

    course = told_run([*lines, *later]).course

    assert course.wall_s == 60
    assert course.starts_s == (0, 30)
    assert course.deaths[3][0] == pytest.approx(38.25)


def test_save_has_its_stall_only_where_nothing_else_made_the_gap() -> None:
    lines = [
        *(line("job_started", 100, workers=1), line("launch", 100)),
        *(line("step", now, step=now - 101, seconds=0.5, generation=1) for now in (102, 103, 104)),
        line("checkpoint", 103.4, step=2, seconds=0.3, bytes=10, generation=1),
        line("checkpoint", 104.5, step=3, seconds=0.25, bytes=10, generation=1),
    ]

    first, last = told_run(lines).course.saves

    assert (first.at_s, first.durable_s) == (pytest.approx(3.1), 0.3)
    assert first.stall_s == pytest.approx(0.5)
    assert last.stall_s is None  # the job was ending


def test_recovery_is_told_in_phases_from_the_death_on() -> None:
    [found] = told_run().course.recoveries

    assert found.title == "step 5, without 2"
    assert list(found.phases_s.values()) == pytest.approx([0.05, 0.001, 0.004, 0.015, 0.010, 0.670])


def test_relaunch_is_told_in_phases_from_the_last_death_on() -> None:
    [found] = told_run().course.relaunches

    assert found.title == "relaunch from step 5"
    assert list(found.phases_s.values()) == pytest.approx([0.4, 6.0, 1.0])


@pytest.mark.parametrize("wall_s", [0.0, 0.1 + 0.2, 9.9999, 33.689, 1234.5, 987654.321])
def test_parts_of_the_wall_time_add_up_as_they_are_printed(wall_s: float) -> None:
    shares = {"training": 0.337, "starting": 0.331, "repair": 0.332, "paused": 0.0}
    parts_s = {name: share * wall_s for name, share in shares.items()}

    parts, wall = parts_of(parts_s)

    def number(text: str) -> float:
        return float(text.removesuffix(" s").replace(",", ""))

    assert sum(number(part.seconds) for part in parts) == pytest.approx(number(wall), abs=1e-9)
    assert all(part.meaning for part in parts)


def test_memory_of_a_host_is_that_of_the_limit_that_was_closest_at_last() -> None:
    lines = [
        line("job_started", 100, workers=1),
        line("memory_used", 101, used=3, limit=90, place="the host", host="a"),
        line("memory_used", 102, used=8, limit=10, place="a group", host="a"),
        line("memory_used", 104, used=9, limit=10, place="a group", host="a"),
        line("memory_used", 104, used=4, limit=90, place="the host", host="b"),
        line("job_ended", 110, exit_code=0, reason=""),
    ]

    memory = told_run(lines).course.memory

    assert memory["a"] == Memory(10, "a group", ((2, 8), (4, 9)))
    assert (memory["a"].most, memory["b"].most) == (9, 4)


def test_events_are_told_once_in_a_row() -> None:
    stops = [line("stopped", 109 + i, step=12) for i in range(2)]
    lines = [line("job_started", 100, workers=1), *stops, line("host_back", 112, host="b")]

    assert told_run(lines).course.events == (
        (0, "started a script on 1 worker"),
        (9, "stopped at step 12 with a checkpoint"),
        (12, "host b is back"),
    )
