"""All that one process has of the script that it runs: its files, folders, stores and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.calls import CallingScript, share_names, share_values
from holdfast.runtime.script.overlay import Overlay, act_by
from holdfast.runtime.script.writes import ScriptFiles, ScriptStores, SharedFolders, SharedWrites


class ScriptProcess:
    """The script of one process.

    Args:
        script: its path.
        record: that of the run.
        run_dir: the run directory, in which everything stays as it is.
        scratch: returns a private folder, which exists.
        since: the time of day when the job began; older folders are not the job's.
        step: names the launch and the step that it has come to.
    """

    def __init__(
        self,
        script: Path,
        record: ScriptRecord,
        run_dir: Path,
        scratch: Callable[[], Path],
        since: float = 0.0,
        step: Callable[[], str] = str,
    ) -> None:
        self._record = record
        self.calls = CallingScript(script)
        self.writes = SharedWrites(record, self.calls, step)
        self.files = ScriptFiles(record, self.calls, self.writes, run_dir, scratch)
        self.folders = SharedFolders(record, self.calls, self.writes, run_dir, since)
        self.stores = ScriptStores(self.calls)
        self.scratch = scratch
        self.folders.before_removal.append(self.files.forget)

    def share(self) -> None:
        """Let Python's functions be those of the script from now on."""
        share_names(self._record, self.calls)
        share_values(self._record, self.calls)
        act_by(self.files.rules | self.folders.rules)

    def begin_training(
        self, number: int, tell: Callable[[str], None], *, is_first: bool
    ) -> Overlay:
        """Return what stands between the hooks of the next training and the disk."""
        self.calls.training = number
        held = self.files.begin_training()
        return Overlay(is_first, self.scratch, tell, self.wrote, held)

    def wrote(self, path: str) -> None:
        """Hear that a hook has made a file for the run, or that the script has saved a model."""
        self.files.forget(path)
        self.folders.wrote(path)


_process: ScriptProcess | None = None


def run_script_in(process: ScriptProcess) -> None:
    """Let this process be that of ``process`` from now on."""
    global _process  # noqa: PLW0603  (one process runs one script)
    _process = process
    process.share()


def script_process() -> ScriptProcess:
    """Return that of this process; a worker has it before its script imports Keras."""
    assert _process is not None, "no script runs in this process"
    return _process
