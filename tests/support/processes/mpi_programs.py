"""Programs that stand in for an mpiexec and its ranks."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.host.launchers import OPEN_MPI, Launcher, MpiLibrary

SPEAKING = """
while [ "$#" -gt 2 ]; do shift; done
echo trial >> "$COUNT"
"""
PASSING = (
    SPEAKING
    + """
for rank in 0 1; do
    echo '{"world": [0], "steps": 6}' > "$1/rank-$rank.json"
done
"""
)
FAILING = (
    SPEAKING
    + """
echo '{"world": [], "steps": 2, "failure": "no Revoke"}' > "$1/rank-0.json"
"""
)


def library_of(
    folder: Path, script: str, version: str = "5.0.9", launcher: Launcher = OPEN_MPI
) -> MpiLibrary:
    path = folder / "mpiexec"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return MpiLibrary(path, version, launcher)


def starts_of(environment: dict[str, str]) -> int:
    """Return how often a program was started."""
    count = Path(environment["COUNT"])
    return len(count.read_text().splitlines()) if count.exists() else 0
