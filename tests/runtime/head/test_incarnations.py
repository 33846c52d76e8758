"""What a run directory remembers of its incarnations, and when a chain of them stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.head.batch_job import FILE_NAME, Chain, ChainedStart, ChainFile
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

RUN = "00112233aabbccdd"


def chain_of(*steps: int) -> Chain:
    starts = (ChainedStart(f"job {n}", step) for n, step in enumerate(steps, 1))
    return Chain("slurm 7", RUN, tuple(starts))


@pytest.mark.parametrize(
    ("steps", "now", "may_start"),
    [
        ((), 0, True),
        ((0,), 0, True),
        ((0, 0), 0, False),
        ((0, 0), 5, True),
        ((0, 40, 40), 40, False),
        ((0, 40, 40), 41, True),
        ((0, 20, 40), 40, True),
        ((40, 40), 30, False),
    ],
)
def test_two_starts_without_progress_are_the_last(
    steps: tuple[int, ...], now: int, *, may_start: bool
) -> None:
    assert (chain_of(*steps).objection(now) is None) == may_start


def test_objection_asks_for_a_new_name_where_the_user_gives_it() -> None:
    """The same name again would be the same chain, which has ended."""
    chain = chain_of(0, 0)

    assert str(chain.objection(0)).endswith("then submit again")
    assert str(chain.objection(0, "HOLDFAST_CHAIN")).endswith(
        "then submit again with a new HOLDFAST_CHAIN (it was slurm 7)"
    )


@given(st.lists(st.integers(0, 5), max_size=20))
def test_chain_starts_at_most_twice_from_any_step(gains: list[int]) -> None:
    """Whatever each incarnation achieves, the same step is begun with twice at most."""
    chain, step = chain_of(), 0
    for gained in gains:
        if chain.objection(step) is not None:
            break
        chain = chain.with_next(ChainedStart("job", step))
        step += gained

    begun = [incarnation.step for incarnation in chain.incarnations]
    assert all(begun.count(step) <= 2 for step in begun)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path)
    made.create_record(RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1))
    return made


def test_chain_is_remembered(directory: RunDirectory) -> None:
    file = ChainFile(directory, "slurm 7")
    chain = Chain("slurm 7", RUN, (ChainedStart("job 1", 3),))

    assert file.read() is None
    file.write(chain)

    assert file.read() == chain
    fields = json.loads(file.path.read_bytes()) | {"complete": "abc"}  # of an older holdfast
    file.path.write_text(json.dumps(fields))
    assert file.read() == chain
    assert [path.name for path in directory.path.iterdir() if "tmp" in path.name] == []


@pytest.mark.parametrize(
    ("name", "run_id"), [("slurm 8", RUN), ("slurm 7", "0" * 16)], ids=["another job", "a new run"]
)
def test_another_chain_begins_anew(directory: RunDirectory, name: str, run_id: str) -> None:
    ChainFile(directory, "slurm 7").write(Chain("slurm 7", run_id))

    assert ChainFile(directory, name).read() is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", "{}", '{"incarnations": 3}', '{"incarnations": [{"step": "x"}]}',
     json.dumps({"name": "slurm 7", "run_id": RUN, "incarnations": [{"label": "a", "step": "4"}]})],
)  # fmt: skip
def test_file_that_makes_no_sense_is_as_good_as_none(directory: RunDirectory, content: str) -> None:
    (directory.path / FILE_NAME).write_text(content)

    assert ChainFile(directory, "slurm 7").read() is None


def test_disk_that_takes_nothing_stops_nothing(tmp_path: Path) -> None:
    kept_from = ChainFile(RunDirectory(tmp_path / "gone"), "slurm 7").write(Chain("slurm 7", RUN))

    assert isinstance(kept_from, FileNotFoundError)
    assert not (tmp_path / "gone").exists()


def test_newest_step_counts_committed_ones(directory: RunDirectory) -> None:
    assert ChainFile(directory, "x").newest_step() == 0
    for name in ("step-000000000040", "step-000000000005", ".tmp-000000000060-g1-a1", "notes"):
        (directory.checkpoints_path / name).mkdir(parents=True)

    assert ChainFile(directory, "x").newest_step() == 40
