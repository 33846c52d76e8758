"""A job of thousands of saves, whose memory, descriptors and files must stay flat; see ci/months.

A month of training has no more saves than this, only more time between them.  So what grows
with each save, each prune or each line of the journal shows here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.testing import JobRequest, RunningJob, start_job

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "02_custom_replica.py"
SAMPLES, GLOBAL_BATCH = 1200, 120
STEPS_AN_EPOCH = SAMPLES // GLOBAL_BATCH
LOOK_S = 2.0
MIB = 2**20
MORE_BYTES = 12 * MIB
MORE_SHARE = 1.1
MORE_DESCRIPTORS = 4
MORE_FILES = 30
"""A prune or a save may be under way at a look."""
JOURNAL_BYTES_A_SAVE = 3000.0


@dataclass
class Series:
    """Figures of one process, or of the run directory, look by look."""

    figures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, value: float) -> None:
        """Take one figure in."""
        self.figures[name].append(value)

    def ends(self, name: str) -> tuple[float, float]:
        """Return the medians of the second and of the last quarter."""
        values = self.figures[name]
        quarter = max(1, len(values) // 4)
        return statistics.median(values[quarter : 2 * quarter]), statistics.median(
            values[-quarter:]
        )


def poll(job: RunningJob, run_dir: Path, found: dict[str, Series]) -> None:
    """Note the memory and descriptors of every process, and the files of the run."""
    for pid, name in job.processes().items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has just ended
        (private,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
        found[name].add("bytes", 1024 * float(private))
        found[name].add("descriptors", descriptors)
    files = sum(len(names) for _, _, names in os.walk(run_dir))
    found["run directory"].add("files", files)


def complaints_of(found: dict[str, Series]) -> list[str]:
    """Return a sentence for each figure that has grown."""
    bounds = {"bytes": (MORE_SHARE, MORE_BYTES), "descriptors": (1.0, MORE_DESCRIPTORS)}
    bounds["files"] = (1.0, MORE_FILES)
    complaints = []
    for who, series in sorted(found.items()):
        for what in series.figures:
            if len(series.figures[what]) < 8:
                continue  # a process that is there for a moment
            before, after = series.ends(what)
            print(f"{who:24} {what:12} {before:14,.0f} → {after:14,.0f}")
            share, more = bounds[what]
            if after > share * before + more:
                complaints.append(f"{who}: {what} grew from {before:,.0f} to {after:,.0f}")
    return complaints


def main() -> int:
    """Run the job; return 1 if anything has grown or went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-months-") as place:
        return watch(Path(place), options.saves)


def watch(place: Path, saves: int) -> int:
    """Train until so many saves are committed, and judge what was seen."""
    epochs = 40 * saves  # it is stopped before
    request = JobRequest(
        script=SCRIPT,
        run_dir=place / "run",
        workers=2,
        microbatches=4,
        argv=[
            *("--samples", str(SAMPLES), "--global-batch", str(GLOBAL_BATCH)),
            *("--epochs", str(epochs), "--save-every", "1"),
        ],
        options=["--threads", "1"],
    )
    found: dict[str, Series] = defaultdict(Series)
    began = time.monotonic()
    with start_job(request, timeout_s=7200.0) as job:
        job.wait_for("checkpoint")
        done = 0
        journal = place / "run" / "journal.jsonl"
        while done < saves:
            time.sleep(LOOK_S)
            poll(job, place / "run", found)
            done = _saves_in(journal)
            if not job.processes():
                print(job.stderr, file=sys.stderr)
                return 1
        size = journal.stat().st_size
        job.signal(15)
        ended = job.wait()
    complaints = complaints_of(found)
    seconds = time.monotonic() - began
    print(f"{done} saves in {seconds:.0f} s, {size / done:.0f} bytes of journal a save")
    if size / done > JOURNAL_BYTES_A_SAVE:
        complaints.append(f"the journal has {size / done:.0f} bytes for each save")
    if ended.exit_code != 75:
        complaints.append(f"the job ended with {ended.exit_code}: {ended.stderr[-500:]}")
    failed = [record for record in ended.journal if record["event"].endswith("_failed")]
    complaints += [f"{record['event']}: {record.get('reason')}" for record in failed[:5]]
    complaints += list(ended.leftovers)
    for complaint in complaints:
        print(f"BAD {complaint}")
    return 1 if complaints else 0


_counted = {"position": 0, "saves": 0}


def _saves_in(journal: Path) -> int:
    """Count the committed checkpoints, reading only what is new."""
    with journal.open("rb") as file:
        file.seek(_counted["position"])
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    _counted["position"] += len(whole)
    _counted["saves"] += whole.count(b'"event": "checkpoint"')
    return _counted["saves"]


if __name__ == "__main__":
    sys.exit(main())
