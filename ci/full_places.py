#!/usr/bin/env python3
"""Fill a job's disk and its /dev/shm for a while: it must end with the bytes of an undisturbed job.

    python ci/full_places.py [--disk-mb 16] [--shm-mb 256] [--for-s 1]

Only places of its own are filled: a tmpfs each, in a mount namespace that nobody else is in.  So
no other program on the machine meets a full disk or a full ``/dev/shm``.  The kernel removes both
with the last process of the namespace.  Needs root; exits with 2 and the reason where mounts are
refused, and with 1 if the job fails or its bytes are wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from workload import Workload, complaints_of, remembering, request_of

from holdfast.testing import RunningJob, start_job

TRAINED = Workload(
    microbatches=6, samples=160, global_batch=40, epochs=15, save_every=4, pause_ms=50
)
DISK_STEP, SHM_STEP = 10, 20
SHARED_MEMORY = Path("/dev/shm")
NAMESPACE_VARIABLE = "HOLDFAST_NAMESPACE"
"""Names the mount namespace that a process with one of its own has come from."""

UNSHARE = ("unshare", "--mount", "--propagation", "private")
_FILLER = ".holdfast-filler"
_LEFT_BYTES = 1 << 16
_PIECE = bytes(1 << 16)


class FullPlace:
    """A tmpfs of its own that can be full for a while."""

    def __init__(self, path: Path, megabytes: int) -> None:
        """Mount it."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        size = f"size={megabytes}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "holdfast-full", str(path)], check=True)

    def fill(self) -> None:
        """Take all room but 64 KiB: a job that could write nothing could not say why it ends."""
        free = os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize
        with (self.path / _FILLER).open("wb", buffering=0) as file:
            while (free := free - len(_PIECE)) >= _LEFT_BYTES:
                try:
                    file.write(_PIECE)
                except OSError:  # the job was faster
                    return

    def release(self) -> None:
        """Give the room back."""
        (self.path / _FILLER).unlink(missing_ok=True)


@contextlib.contextmanager
def full_place(path: Path, megabytes: int) -> Iterator[FullPlace]:
    """Have a place until the end, at the latest until the end of the namespace."""
    place = FullPlace(path, megabytes)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Go on in a namespace of its own; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--disk-mb", type=int, default=16, help="room on the disk")
    parser.add_argument("--shm-mb", type=int, default=256, help="room in /dev/shm")
    parser.add_argument("--for-s", type=float, default=1.0, help="how long each is full")
    options = parser.parse_args(argv)
    if not is_private():
        reason = refusal()
        if reason is not None:
            print(f"full_places: {reason}", file=sys.stderr)
            return 2
        enter([sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(prefix="holdfast-full-places-") as name:
        folder = Path(name)
        with (
            full_place(folder / "disk", options.disk_mb) as disk,
            full_place(SHARED_MEMORY, options.shm_mb) as shm,
        ):
            expected = remembering(folder.joinpath)(TRAINED)
            terms = ("--heartbeat-timeout", "5")
            request = request_of(TRAINED, disk.path / "run", workers=3, options=terms)
            with start_job(request) as running:
                _fill(running, disk, DISK_STEP, options.for_s)
                _fill(running, shm, SHM_STEP, options.for_s)
                struck = running.wait()
    complaints = list(complaints_of(struck, TRAINED, expected))
    print("\n".join(complaints) or f"good: {struck.sha256}")
    return 1 if complaints else 0


def is_private() -> bool:
    """Return whether this process is in a mount namespace of its own: only there it may fill."""
    return os.environ.get(NAMESPACE_VARIABLE, _namespace()) != _namespace()


def refusal() -> str | None:
    """Return why this user cannot have mounts of their own, None if they can."""
    if shutil.which(UNSHARE[0]) is None:
        return "there is no unshare (util-linux)"
    trial = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        return f"a mount namespace is refused ({trial.stderr.strip()}); it takes root"
    return None


def enter(command: Sequence[str]) -> None:
    """Become ``command`` in a mount namespace of its own; never returns."""
    sys.stdout.flush()
    environment = {**os.environ, NAMESPACE_VARIABLE: _namespace()}
    os.execvpe(UNSHARE[0], [*UNSHARE, *command], environment)


def _namespace() -> str:
    return os.readlink("/proc/self/ns/mnt")


def _fill(running: RunningJob, place: FullPlace, step: int, seconds: float) -> None:
    """Let a place be full for a while from a step on."""
    running.wait_for("step", step=step)
    place.fill()
    print(f"{place.path} takes nothing from step {step} on, for {seconds:g} s", flush=True)
    time.sleep(seconds)
    place.release()


if __name__ == "__main__":
    sys.exit(main())
