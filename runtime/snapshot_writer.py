"""The process that writes the snapshots of a host's workers: a child of the agent.

It is niced and has neither MPI nor TensorFlow nor HDF5: a snapshot is the file, byte
for byte.  While workers live they decide what becomes of a save, and one of them
commits it.  When all of them are dead, the agent asks to *settle*: a save whose shards
are all durable is committed then, so that nothing that was complete in memory is lost.
So everything that is ever restored is restored from the disk.

Every snapshot is answered, with ``durable`` or with ``failed`` and a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import mmap
import os
import sys
import time
from collections.abc import Sequence

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.channel import FDS, Channel, Message
from holdfast.runtime.journal import Journal
from holdfast.runtime.processes import die_with_parent, name_process
from holdfast.runtime.snapshot import Snapshot

_NICE = 10
_ANSWERED = ("launch", "worker", "attempt", "step")
"""Fields of a snapshot that its answer repeats."""


class SnapshotWriter:
    """Writes what it is given, in order, and remembers the newest save."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._newest: Snapshot | None = None
        self._durable: dict[int, Snapshot] = {}
        self._began = 0.0

    def run(self) -> None:
        """Serve until the agent closes the connection; what has arrived is written."""
        while (message := self._channel.receive()) is not None:
            if message["kind"] == "snapshot":
                self._answer(message, self._write(message))
            elif message["kind"] == "settle":
                self._settle()

    def _answer(self, message: Message, failure: str | None) -> None:
        answer = {name: message[name] for name in _ANSWERED}
        answer["kind"] = "durable" if failure is None else "failed"
        self._send({**answer, "reason": failure})

    def _write(self, message: Message) -> str | None:
        """Make a snapshot durable; return why it is not."""
        (fd,) = message[FDS]
        snapshot = Snapshot.of(message)
        try:
            # Unmapped with its last view: after an error, the traceback still holds some.
            memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            _write_shard(snapshot, memoryview(memory)[: snapshot.record.size])
        except (CheckpointError, OSError) as error:
            _record(snapshot, "checkpoint_failed", worker=message["worker"], reason=str(error))
            return str(error)
        finally:
            os.close(fd)
        self._note(snapshot)
        return None

    def _note(self, snapshot: Snapshot) -> None:
        """Remember what is durable of the newest save."""
        if self._newest is not None and _age(snapshot) < _age(self._newest):
            return
        if self._newest is None or self._newest.plan.key != snapshot.plan.key:
            self._durable.clear()
            self._began = time.monotonic()
        self._newest = snapshot
        self._durable[snapshot.record.index] = snapshot

    def _settle(self) -> None:
        """Commit the newest save if it is whole and nobody has committed it yet."""
        step: int | None = None
        snapshot, self._newest = self._newest, None
        if snapshot is not None and self._is_whole(snapshot):
            try:
                step = self._commit(snapshot)
            except (CheckpointError, OSError) as error:
                _record(snapshot, "checkpoint_failed", reason=str(error))
        self._durable.clear()
        self._send({"kind": "settled", "step": step})

    def _is_whole(self, snapshot: Snapshot) -> bool:
        """Return whether all shards of the save are durable, and of one and the same state."""
        digests = {durable.state_digest for durable in self._durable.values()}
        return len(self._durable) == snapshot.plan.layout.writers and len(digests) == 1

    def _commit(self, snapshot: Snapshot) -> int:
        """Commit a save for workers that are dead; return its step."""
        store = CheckpointStore(snapshot.run_dir)
        step, generation, attempt = snapshot.plan.key
        if step in store.steps():
            return step  # they have done it, and were not able to say so
        staging = store.staging(step, generation, attempt)
        staging.take_over()
        manifest = snapshot.plan.manifest([durable.record for durable in self._durable.values()])
        staging.commit(manifest)
        seconds = round(time.monotonic() - self._began, 6)
        _record(snapshot, "checkpoint", bytes=manifest.nbytes, seconds=seconds, orphaned=True)
        return step

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone: nobody waits for an answer


def _age(snapshot: Snapshot) -> tuple[int, int]:
    """Return what is larger for the later of two saves of a launch."""
    return snapshot.plan.header.generation, snapshot.plan.attempt


def _write_shard(snapshot: Snapshot, image: memoryview) -> None:
    step, generation, attempt = snapshot.plan.key
    staging = CheckpointStore(snapshot.run_dir).staging(step, generation, attempt)
    staging.write_image(image, snapshot.record, snapshot.plan.layout.writers)


def _record(snapshot: Snapshot, event: str, **fields: object) -> None:
    """Write into the run's journal, if there still is a run directory."""
    step, generation, _ = snapshot.plan.key
    path = snapshot.run_dir / "journal.jsonl"
    with contextlib.suppress(OSError):
        journal = Journal(path, run_id=snapshot.plan.header.run_id, source="snapshot writer")
        journal.record(event, step=step, generation=generation, **fields)
        journal.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Be the writer of the agent at the other end of the descriptor."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.runtime.snapshot_writer")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument(
        "--parent", type=int, required=True, help="the agent, which holds the lease"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="holdfast: %(message)s")
    name_process("holdfast-writer")
    os.nice(_NICE)
    die_with_parent(options.parent)
    SnapshotWriter(Channel.adopt(options.control_fd)).run()


if __name__ == "__main__":
    main()
