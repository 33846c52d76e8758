"""``holdfast import`` as a process, for tests of whole jobs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing import JobRequest

HOLDFAST = (sys.executable, "-c", "from holdfast.runtime.cli.main import main; main()")


@dataclass(frozen=True, kw_only=True)
class ImportRequest(JobRequest):
    """One ``holdfast import``."""

    weights: Path

    def command(self) -> list[str]:
        line = JobRequest.command(self)
        line[line.index("run")] = "import"
        line.insert(len(line) - 1 - len(self.argv), str(self.weights))
        return line


def export(run_dir: Path, target: Path, *options: str) -> None:
    """Write the newest weights of a run as a file."""
    line = [*HOLDFAST, "export", str(run_dir), "--to", str(target), *options]
    subprocess.run(line, check=True, capture_output=True)
