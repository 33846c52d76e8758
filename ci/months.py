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
from collections.abc import Iterator
from pathlib import Path

from holdfast.testing import JobRequest, RunningJob, start_job

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "02_custom_replica.py"
LOOK_S = 2.0
BOUNDS = {"bytes": (1.1, 12 * 2**20), "descriptors": (1.0, 4), "files": (1.0, 30)}
"""How much a figure may grow, as a factor and beyond it; a prune may be under way at a look."""
JOURNAL_BYTES_A_SAVE = 3000.0

Figures = dict[tuple[str, str], list[float]]
"""What was seen, look by look, of each process and of the run directory."""


def main() -> int:
    """Run the job; return 1 if anything has grown or went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=5000)
    saves = parser.parse_args().saves
    with tempfile.TemporaryDirectory(prefix="holdfast-months-") as place:
        complaints = list(watch(Path(place), saves))
    for complaint in complaints:
        print(f"BAD {complaint}")
    return 1 if complaints else 0


def watch(place: Path, saves: int) -> Iterator[str]:
    """Train until so many saves are committed; yield a sentence for each thing that is wrong."""
    request = JobRequest(
        script=SCRIPT,
        run_dir=place / "run",
        workers=2,
        microbatches=4,
        argv=[
            *("--samples", "1200", "--global-batch", "120"),
            *("--epochs", str(40 * saves), "--save-every", "1"),  # it is stopped before
        ],
        options=["--threads", "1"],
    )
    found: Figures = defaultdict(list)
    began, done, journal = time.monotonic(), 0, place / "run" / "journal.jsonl"
    with start_job(request, timeout_s=7200.0) as job:
        job.wait_for("checkpoint")
        with journal.open("rb") as lines:
            while done < saves and job.exit_code is None:
                time.sleep(LOOK_S)
                look(job, place / "run", found)
                done += lines.read().count(b'"event": "checkpoint"')
        size = journal.stat().st_size
        job.signal(15)
        ended = job.wait()
    seconds = time.monotonic() - began
    print(f"{done} saves in {seconds:.0f} s, {size / done:.0f} bytes of journal a save")
    yield from grown(found)
    if size / done > JOURNAL_BYTES_A_SAVE:
        yield f"the journal has {size / done:.0f} bytes for each save"
    if ended.exit_code != 75:
        yield f"the job ended with {ended.exit_code}: {ended.stderr[-500:]}"
    failed = [record for record in ended.journal if record["event"].endswith("_failed")]
    yield from (f"{record['event']}: {record.get('reason')}" for record in failed[:5])
    yield from ended.leftovers


def look(job: RunningJob, run_dir: Path, found: Figures) -> None:
    """Note the memory and descriptors of every process, and the files of the run."""
    for pid, name in job.processes().items():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has just ended
        (private,) = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
        found[name, "bytes"].append(1024 * float(private))
        found[name, "descriptors"].append(descriptors)
    files = sum(len(names) for _, _, names in os.walk(run_dir))
    found["run directory", "files"].append(files)


def grown(found: Figures) -> Iterator[str]:
    """Yield a sentence for each figure that has grown from the second quarter to the last."""
    for (who, what), values in sorted(found.items()):
        quarter = len(values) // 4
        if quarter < 2:
            continue  # a process that is there for a moment
        before = statistics.median(values[quarter : 2 * quarter])
        after = statistics.median(values[-quarter:])
        print(f"{who:24} {what:12} {before:14,.0f} → {after:14,.0f}")
        factor, more = BOUNDS[what]
        if after > factor * before + more:
            yield f"{who}: {what} grew from {before:,.0f} to {after:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
