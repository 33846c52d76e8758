"""What the user asked for, validated once.

Values come from flags, else ``HOLDFAST_*`` variables, else ``holdfast.toml`` in
the working directory, else the defaults below; the command line merges them and
builds a ``RunConfig``.  Nothing else reads options from the environment.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.errors import RecoveryError
from holdfast.recovery.fault import FaultPlan, parse_fault
from holdfast.recovery.schedule import parse_schedule
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.worker_config import DEFAULT_SCRUB_EVERY_S
from holdfast.runtime.system.processes import usable_cores

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "holdfast.toml"

DEFAULT_HEARTBEAT_TIMEOUT_S = 10.0
DEFAULT_MAX_RESTARTS = 3
DEFAULT_PRELOAD = ("tensorflow", "keras")
DEFAULT_SEED = 0


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One ``holdfast run``, as asked for.

    ``microbatches``, ``threads`` and ``seed`` belong to the run and not to the
    job: ``None`` means *not given*, so that a resumed run keeps what its
    ``RUN.json`` holds and a new one takes the defaults (``new_microbatches`` and
    so on).  ``threads`` are those of one worker.  ``preload`` are modules that
    warm processes import before they become workers; one that is not installed
    is the script's business, not the pool's.  ``save_every``, ``verify_every`` and
    ``initial``, which may be an ``initial_step`` of another run, override the script's.
    ``snapshot_copies`` are those of each slice in memory: None stands for a second one
    where there are several nodes.  ``scrub_every_s`` of 0 means never.  A job that
    ``trains`` is false of stops at the first state, with a checkpoint.  ``key_file`` holds the
    key that checkpoints are signed with.
    """

    script: Path
    run_dir: Path
    workers: int = 1
    argv: tuple[str, ...] = ()
    spares: int = 0
    microbatches: int | None = None
    threads: int | None = None
    seed: int | None = None
    save_every: str | None = None
    verify_every: int | None = None
    snapshot_copies: int | None = None
    scrub_every_s: float = DEFAULT_SCRUB_EVERY_S
    repair_from: Path | None = None
    initial: Path | None = None
    initial_step: int | None = None
    key_file: Path | None = None
    heartbeat_timeout_s: float = DEFAULT_HEARTBEAT_TIMEOUT_S
    max_restarts: int = DEFAULT_MAX_RESTARTS
    faults: tuple[str, ...] = ()
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    mpiexec: Path | None = None
    fresh: bool = False
    strict: bool = False
    shrink: bool = True
    verbose: bool = False
    trains: bool = True

    def __post_init__(self) -> None:
        """Refuse requests that make no sense, with one sentence each.

        Raises:
            UsageError: a value is out of range, a schedule or a fault address does not
                parse, the script is no file, or the run is to be repaired from itself.
        """
        _at_least(1, self.workers, "-n (workers)")
        _at_least(0, self.spares, "--spares")
        _at_least(0, self.max_restarts, "--max-restarts")
        if self.microbatches is not None:
            _at_least(1, self.microbatches, "--microbatches")
        if self.threads is not None:
            _at_least(1, self.threads, "--threads")
        if self.seed is not None:
            _at_least(0, self.seed, "--seed")
        if not (self.heartbeat_timeout_s > 0 and math.isfinite(self.heartbeat_timeout_s)):
            raise UsageError(
                f"--heartbeat-timeout must be a positive number of seconds, "
                f"got {self.heartbeat_timeout_s}"
            )
        if self.verify_every is not None:
            _at_least(0, self.verify_every, "--verify-every")
        if self.snapshot_copies not in (None, 1, 2):
            raise UsageError(f"--snapshot-copies must be 1 or 2, got {self.snapshot_copies}")
        _check_scrubs(self.scrub_every_s)
        _check_mirror(self.repair_from, self.run_dir)
        _check_schedule(self.save_every)
        _check_faults(self.faults)
        _check_script(self.script)

    @property
    def new_microbatches(self) -> int:
        """Microbatches of a run that is created now: one per worker unless given."""
        return self.workers if self.microbatches is None else self.microbatches

    @property
    def new_threads(self) -> int:
        """Threads per worker of a run that is created now: the cores divided among workers."""
        return max(1, usable_cores() // self.workers) if self.threads is None else self.threads

    @property
    def new_seed(self) -> int:
        """Seed of a run that is created now."""
        return DEFAULT_SEED if self.seed is None else self.seed


def default_run_dir(script: Path) -> Path:
    """Return ``holdfast-<name of the script>`` in the working directory."""
    return Path.cwd() / f"holdfast-{script.stem}"


def read_config_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a ``holdfast.toml``, one per command; none without a file.

    Option names may be written with dashes, as on the command line.

    Raises:
        UsageError: the file cannot be read or is no such file.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; correct it or move it away") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise UsageError(
                f"{path} sets {name!r} outside a table; "
                "options of `holdfast run` stand under the heading [run]"
            )
    return {
        command: {option.replace("-", "_"): value for option, value in table.items()}
        for command, table in content.items()
    }


def _at_least(least: int, value: int, option: str) -> None:
    if value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")


def _check_schedule(save_every: str | None) -> None:
    try:
        if save_every is not None:
            parse_schedule(save_every)
    except RecoveryError as error:
        raise UsageError(f"--save-every: {error}") from error


def _check_scrubs(scrub_every_s: float) -> None:
    if not (scrub_every_s >= 0 and math.isfinite(scrub_every_s)):
        raise UsageError(
            f"--scrub-every must be a number of seconds, or 0 or never for none, "
            f"got {scrub_every_s}"
        )


def _check_mirror(repair_from: Path | None, run_dir: Path) -> None:
    """Refuse the run itself; whether there is a mirror matters only once one is needed."""
    if repair_from is None:
        return
    # Not resolve(): that raises RuntimeError for a link to itself.
    if os.path.realpath(repair_from) == os.path.realpath(run_dir):
        raise UsageError(f"--repair-from {repair_from} is the run itself; give another copy of it")


def _check_faults(faults: tuple[str, ...]) -> None:
    try:
        FaultPlan(tuple(parse_fault(text) for text in faults))
    except (RecoveryError, ValueError) as error:
        raise UsageError(f"--inject: {error}") from error


def _check_script(script: Path) -> None:
    if not script.exists():
        raise UsageError(f"script {script} does not exist; give the path of a Python file")
    if not script.is_file() or not os.access(script, os.R_OK):
        raise UsageError(f"script {script} is not a readable file; give the path of a Python file")
