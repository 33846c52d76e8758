"""The process that writes the snapshots of a host's workers: a child of the agent.

It is niced and has neither MPI nor TensorFlow nor HDF5: a snapshot is the file, byte
for byte.  While workers live, they decide the fate of a save, and one of them commits it.
When all of them are dead, the agent asks to *settle*: the writer then commits the newest
save if all its shards are in memory.  So no save that was complete in memory is lost.

Every snapshot is answered, with ``durable`` or ``held``, or with ``failed`` and a reason.

A second copy of a shard is held until it is needed.  It is needed if the first copy has
changed in memory, or if its worker died before it was complete.  The images of the newest
complete save are kept.  If the disk has lost that step or could not take it, it is mended
from them, or a relaunched job reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    SnapshotDamaged,
    StorageFailed,
)
from holdfast.checkpoint.upkeep.mend import Holders, MendResult, mend_step
from holdfast.runtime.run.intruder import refuse_intruder
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.saving.held_save import HeldSave, HeldSnapshot
from holdfast.runtime.saving.snapshot import Snapshot
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.own_process import allow_many_files, die_with_parent, name_process

_NICE = 10
_NOT_AS_IT_WAS_STAGED = frozenset({errno.ENOENT, errno.EEXIST})
"""Errors of a save that its workers had given up, or had begun to write themselves."""
_ANSWERED = ("launch", "worker", "attempt", "step", "is_second", "shard")
"""Fields of a snapshot that its answer repeats."""


class SnapshotWriter:
    """Writes snapshots in the order in which they arrive, and remembers the newest save."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._save: HeldSave | None = None
        self._kept: HeldSave | None = None
        self._downgrades_told: set[str] = set()

    def run(self) -> None:
        """Serve until the agent closes the connection; write every snapshot that has arrived."""
        while (message := self._channel.receive()) is not None:
            if message["kind"] == "snapshot":
                self._take(message)
            elif message["kind"] == "settle":
                self._settle()
            elif message["kind"] == "mend":
                self._mend(message["step"])
            elif message["kind"] == "keeps":
                self._send({"kind": "kept", "step": self._kept.step if self._kept else None})
            elif message["kind"] == "open":
                self._tell_where_images_are()

    def _take(self, message: Message) -> None:
        """Write a snapshot, or hold it if it is a second copy, and answer."""
        answer = {name: message[name] for name in _ANSWERED}
        try:
            answer |= {"kind": self._accept(message), "reason": None}
        except (CheckpointError, OSError) as error:
            snapshot = Snapshot.of(message)
            event = "second_copy_failed" if message["is_second"] else "checkpoint_failed"
            _record(snapshot, event, worker=message["worker"], reason=str(error))
            answer |= {"kind": "failed", "reason": str(error)}
        self._send(answer)

    def _accept(self, message: Message) -> str:
        held = HeldSnapshot.of(message)
        try:
            refuse_intruder(held.snapshot.run_dir, held.snapshot.plan.header.run_id)
            save = self._save_of(held.snapshot)
        except CheckpointError:
            os.close(held.fd)  # no save owns it
            raise
        try:
            return _hold(held, save) if message["is_second"] else _write(held, save)
        finally:
            self._keep_if_complete()
            self._tell_downgrades(save)
            if save is not self._save:
                save.close()

    def _save_of(self, snapshot: Snapshot) -> HeldSave:
        """Return the save to which a snapshot belongs; only the newest save is kept."""
        if self._save is None or self._save.plan.key != snapshot.plan.key:
            begun = HeldSave.begun_by(snapshot)
            if self._save is not None and begun.age < self._save.age:
                return begun
            self._put_away()
            self._save = begun
        return self._save

    def _keep_if_complete(self) -> None:
        """Keep the images of the newest save from now on, instead of those of an older one."""
        save = self._save
        if save is not None and save.is_complete and save is not self._kept:
            save, self._kept = self._kept, save
            if save is not None:
                save.close()
        elif self._kept is not None and not self._kept.is_complete:
            self._kept = None  # damage was found in it since

    def _put_away(self) -> None:
        """Let go of the newest save; if it is kept, keep one copy of each shard."""
        self._keep_if_complete()
        save, self._save = self._save, None
        if save is not None and save is self._kept:
            save.forget_copies()
        elif save is not None:
            save.close()

    def _settle(self) -> None:
        """Commit the newest save if it is complete and not committed yet."""
        step: int | None = None
        save = self._save
        if save is not None and save.is_complete:
            try:
                step = _commit(save)
            except (CheckpointError, OSError) as error:
                _record(save, "checkpoint_failed", reason=str(error))
            self._tell_downgrades(save)
        self._put_away()
        self._send({"kind": "settled", "step": step})

    def _mend(self, step: int) -> None:
        """Mend a step on the disk from its kept images, if there are any."""
        answer: Message = {"kind": "mended", "step": step, "reason": None, "result": None}
        save = self._kept
        if save is None or save.step != step:
            answer["reason"] = "there are no snapshots of it in memory"
        else:
            try:
                answer["result"] = asdict(_mend_save(save))
            except (CheckpointError, OSError) as error:
                answer["reason"] = str(error)
        self._send(answer)

    def _tell_where_images_are(self) -> None:
        """Tell the step whose images are kept, and the descriptors by which to map them."""
        answer: Message = {"kind": "opened", "step": None}
        if (save := self._kept) is not None:
            manifest = save.manifest().encode(save.store.key).decode()
            fds = {index: held.fd for index, held in save.images.items()}
            answer |= {"step": save.step, "manifest": manifest, "pid": os.getpid(), "fds": fds}
        self._send(answer)

    def _tell_downgrades(self, save: HeldSave) -> None:
        for reason in save.store.disk.new_downgrades(self._downgrades_told):
            _record(save, "storage_downgrade", reason=reason)

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone, so no process waits for the answer


def _hold(held: HeldSnapshot, save: HeldSave) -> str:
    """Keep a second copy until it is needed."""
    save.seconds[held.snapshot.record.index] = held
    return "held"


def _write(held: HeldSnapshot, save: HeldSave) -> str:
    """Make a shard durable."""
    save.firsts[held.snapshot.record.index] = held
    _write_one_of(held, save)
    return "durable"


def _write_one_of(held: HeldSnapshot, save: HeldSave) -> None:
    """Write a shard, from its second copy if the first has changed in memory."""
    index = held.snapshot.record.index
    try:
        _write_shard(held, save)
        save.durable[index] = held
    except SnapshotDamaged as error:
        save.forget(held)
        second = save.seconds.get(index)
        if second is None or not second.is_of_same_state(held):
            raise
        _record(held.snapshot, "snapshot_damaged", shard=index, reason=str(error))
        _write_one_of(second, save)


def _write_shard(held: HeldSnapshot, save: HeldSave) -> None:
    staging = save.store.staging(*save.plan.key)
    staging.write_image(held.image, held.snapshot.record, save.plan.layout.writers)


def _commit(save: HeldSave) -> int:
    """Commit a save for workers that are dead; return its step."""
    if _is_committed(save):
        return save.step
    try:
        _commit_staged(save)
    except StorageFailed as failure:
        if failure.errno not in _NOT_AS_IT_WAS_STAGED:
            raise
        _mend_save(save)
    seconds = round(time.monotonic() - save.began, 6)
    _record(save, "checkpoint", bytes=save.manifest().nbytes, seconds=seconds, orphaned=True)
    return save.step


def _commit_staged(save: HeldSave) -> None:
    for held in save.lacking():  # their workers died too soon, or the disk was full
        _write_one_of(held, save)
    refuse_intruder(save.run_dir, save.plan.header.run_id)
    staging = save.store.staging(*save.plan.key)
    staging.take_over()
    staging.commit(save.manifest())


def _is_committed(save: HeldSave) -> bool:
    """Return whether the workers committed the save before they died without reporting it.

    The checkpoint under the step's name may also be an older save that was found damaged.
    """
    try:
        found = save.store.scan(save.step).manifest_alone()
    except CheckpointUnreadable:
        raise
    except CheckpointInvalid:
        return False
    header = save.plan.header
    return (found.run_id, found.generation) == (header.run_id, header.generation)


def _mend_save(save: HeldSave) -> MendResult:
    holders = Holders(save.store, save.as_store())
    return mend_step(holders, save.step, run_id=save.plan.header.run_id)


def _record(about: Snapshot | HeldSave, event: str, **fields: object) -> None:
    """Write into the run's journal, if the run directory still exists."""
    step, generation, _ = about.plan.key
    path = RunDirectory(about.run_dir).journal_path
    with contextlib.suppress(OSError):
        journal = Journal(path, run_id=about.plan.header.run_id, source="snapshot writer")
        journal.record(event, step=step, generation=generation, **fields)
        journal.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the writer of the agent at the other end of the descriptor."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.saving.snapshot_writer")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument(
        "--parent", type=int, required=True, help="the agent, which holds the lease"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="holdfast: %(message)s")
    name_process("holdfast-writer")
    os.nice(_NICE)
    allow_many_files()  # two descriptors for each image of two saves
    die_with_parent(options.parent)
    SnapshotWriter(Channel.adopt(options.control_fd)).run()


if __name__ == "__main__":
    main()
