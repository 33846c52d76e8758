"""Every file-system call of a save fails once: the save says so, or it is durable after all."""

from __future__ import annotations

import copy
import errno
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, Survival
from whole_save import save

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor

pytestmark = pytest.mark.usefixtures("early_writeback")

RUN_DIR = Path("/run/job")
OLD, NEW = 10, 20


def small_state(step: int) -> dict[str, Tensor]:
    random = np.random.default_rng(step)
    return {
        "kernel": random.normal(size=(40, 70)).astype(np.float32),
        "bias": random.normal(size=70).astype(np.float32),
    }


@functools.cache
def _saved(*steps: int) -> FakeFileSystem:
    filesystem = FakeFileSystem()
    for step in steps:
        save(CheckpointStore(RUN_DIR, filesystem), small_state(step), header=Header("run", 1, step))
    return filesystem


def saved(*steps: int) -> FakeFileSystem:
    """Return a file system of the caller's own, on which these steps were saved."""
    return copy.deepcopy(_saved(*steps))


def saved_once() -> FakeFileSystem:
    return saved(OLD)


def save_new(filesystem: FakeFileSystem) -> CheckpointError | None:
    """Save the new step in a fresh process; return how it failed."""
    store = CheckpointStore(RUN_DIR, filesystem)
    try:
        save(store, small_state(NEW), header=Header("run", 1, NEW), writers=2)
    except CheckpointError as error:
        return error
    return None


def calls_of_save(begin: Callable[[], FakeFileSystem] = saved_once) -> range:
    filesystem = begin()
    before = len(filesystem.calls)
    save_new(filesystem)
    return range(before, len(filesystem.calls))


def newest(filesystem: FakeFileSystem) -> tuple[int, dict[str, Tensor]]:
    restored, _ = restore_newest(CheckpointStore(RUN_DIR, filesystem))
    assert restored is not None
    return restored.manifest.step, restored.state


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_failed_call_fails_the_save_loudly_and_leaves_the_old_checkpoint(
    number: int, same_bytes: Callable[..., bool]
) -> None:
    for call in calls_of_save():
        filesystem = saved_once()
        filesystem.fail_at(call, number)

        failure = save_new(filesystem)

        after = filesystem.after_power_cut(Survival.ANYTHING, seed=call)
        expected = OLD if failure else NEW
        if failure is None:  # nothing depends on telling files apart or closing what was read
            operation, path = filesystem.calls[call].split()
            readers = [c for c in filesystem.calls[:call] if c == f"open_read {path}"]
            assert operation == "identity" or (operation == "close" and readers)
        for disk in (filesystem, after, filesystem.after_power_cut(Survival.NOTHING)):
            step, state = newest(disk)
            assert step >= expected, filesystem.calls[call]
            assert same_bytes(state, small_state(step))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("begin", [saved_once, FakeFileSystem], ids=["second save", "first save"])
def test_next_attempt_succeeds_after_a_failure_at_any_call(
    begin: Callable[[], FakeFileSystem], number: int, same_bytes: Callable[..., bool]
) -> None:
    """Even after a failed sync: an acknowledged save has survived a sync of its own."""
    for call in calls_of_save(begin):
        filesystem = begin()
        filesystem.fail_at(call, number)
        save_new(filesystem)

        assert save_new(filesystem) is None

        for survival in (Survival.NOTHING, Survival.ANYTHING):
            step, state = newest(filesystem.after_power_cut(survival, seed=call))
            assert step == NEW, filesystem.calls[call]
            assert same_bytes(state, small_state(NEW))


def interrupt(filesystem: FakeFileSystem, call: int) -> None:
    filesystem.fail_at(call, errno.EINTR)


def shorten(filesystem: FakeFileSystem, call: int) -> None:
    filesystem.shorten_at(call)
    filesystem.shorten_at(call + 1)


@pytest.mark.parametrize("disturb", [interrupt, shorten])
def test_interrupted_and_short_calls_go_on(
    disturb: Callable[[FakeFileSystem, int], None], same_bytes: Callable[..., bool]
) -> None:
    for call in calls_of_save():
        filesystem = saved_once()
        disturb(filesystem, call)

        failure = save_new(filesystem)

        assert failure is None, filesystem.calls[call]
        step, state = newest(filesystem.after_power_cut(Survival.NOTHING))
        assert step == NEW
        assert same_bytes(state, small_state(NEW))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EINTR])
def test_failure_while_pruning_never_raises_and_never_loses_the_newest(
    number: int, same_bytes: Callable[..., bool]
) -> None:
    for call in range(calls_before_prune(), calls_with_prune()):
        filesystem, store = three_steps()
        filesystem.fail_at(call, number)

        Pruner(store, Retention(2)).prune()
        reasons = Pruner(store, Retention(2)).prune()

        assert reasons == ()
        assert store.steps() == (30, 20)
        assert [name for name in store.names() if name.startswith(".")] == []
        step, state = newest(filesystem.after_power_cut(Survival.ANYTHING, seed=call))
        assert step == 30
        assert same_bytes(state, small_state(30))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_failure_while_pruning_never_costs_the_last_good_step(number: int) -> None:
    """Both kept steps are damaged, so no older step may go, even if another call fails."""
    filesystem, store = two_damaged_of_four()
    before = len(filesystem.calls)
    Pruner(store, Retention(2)).prune()

    for call in range(before, len(filesystem.calls)):
        failing, store = two_damaged_of_four()
        failing.fail_at(call, number)

        Pruner(store, Retention(2)).prune()

        assert newest(failing)[0] == 20, failing.calls[call]
        assert store.steps() == (40, 30, 20, 10)


def two_damaged_of_four() -> tuple[FakeFileSystem, CheckpointStore]:
    """Return a store whose newest two steps are those of other steps."""
    filesystem = saved(10, 20, 28, 38)
    store = CheckpointStore(RUN_DIR, filesystem)
    for step in (28, 38):
        old, new = (store.directory / f"step-{number:012d}" for number in (step, step + 2))
        store.disk.rename(old, new)
    return filesystem, store


def three_steps() -> tuple[FakeFileSystem, CheckpointStore]:
    filesystem = saved(10, 20, 30)
    return filesystem, CheckpointStore(RUN_DIR, filesystem)


def calls_before_prune() -> int:
    return len(three_steps()[0].calls)


def calls_with_prune() -> int:
    filesystem, store = three_steps()
    Pruner(store, Retention(2)).prune()
    return len(filesystem.calls)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_failure_while_restoring_is_a_reason_and_the_older_step_is_used(
    number: int, same_bytes: Callable[..., bool]
) -> None:
    undisturbed = saved_once()
    save_new(undisturbed)
    begin = len(undisturbed.calls)
    read = copy.deepcopy(undisturbed)
    newest(read)
    end = len(read.calls)

    for call in range(begin, end):
        filesystem = copy.deepcopy(undisturbed)
        filesystem.fail_at(call, number)
        store = CheckpointStore(RUN_DIR, filesystem)
        try:
            restored, rejections = restore_newest(store)
        except CheckpointError:
            assert filesystem.calls[call].startswith(("list", "is_directory"))
            continue
        assert restored is not None
        assert same_bytes(restored.state, small_state(restored.manifest.step))
        assert [rejection.step for rejection in rejections] == (
            [NEW] if restored.manifest.step == OLD else []
        )
