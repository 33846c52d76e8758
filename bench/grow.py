"""The pause of a training that is scaled up and down: last step of one launch to the next step.

    python bench/grow.py [--pauses 20] [--workers 4 2] [--hosts] [--script numpy digits]

One job is scaled between two numbers of workers, again and again.  With ``--hosts`` each worker has
a host of its own, a namespace of this machine.  There is no peer: the bounds are 1.5 s on one host,
and 3 s on several, for the worst of all pauses.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import harness
from cluster import Cluster
from host_jobs import HostJob

from holdfast.testing import JobRequest, RunningJob, start_job

BOUND_S = {False: 1.5, True: 3.0}
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ENDLESS = ("--epochs", "100000", "--save-every", "50")
SCRIPTS = {"numpy": "02_custom_replica.py", "digits": "01_digits.py"}


def main() -> None:
    options = _options()
    harness.print_heading("last step of a launch to the first of the prepared one")
    for name in options.script:
        pauses = _on_hosts(name, options) if options.hosts else _on_one(name, options)
        spread, bound = harness.Spread.of(pauses), BOUND_S[options.hosts]
        where = f"{max(options.workers)} hosts" if options.hosts else "one host"
        sizes = " and ".join(map(str, options.workers))
        print(
            f"{name}, {sizes} workers on {where}, {len(pauses)} pauses: {spread.text()} s; "
            f"bound {bound:g} s for the worst: {harness.verdict(holds=spread.most <= bound)}",
            flush=True,
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs=2, default=[4, 2])
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--script", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    return parser.parse_args()


def _request(name: str, run_dir: Path, workers: Sequence[int]) -> JobRequest:
    return JobRequest(
        script=EXAMPLES / SCRIPTS[name],
        run_dir=run_dir,
        workers=workers[0],
        microbatches=max(workers),
        argv=ENDLESS,
        options=("--threads", "1", "--regrow", "never"),
    )


def _on_one(name: str, options: argparse.Namespace) -> list[float]:
    with harness.private_directory() as directory:
        request = _request(name, directory / "run", options.workers)
        with start_job(request) as job:
            return _scaled(job, directory / "run", options, _run)


def _on_hosts(name: str, options: argparse.Namespace) -> list[float]:
    names = ("a", "b", "c", "d")[: max(options.workers)]
    with harness.private_directory() as directory, Cluster(directory, names) as cluster:
        request = _request(name, directory / "run", options.workers)
        with HostJob(cluster, request, ",".join(f"{host}:1" for host in names)) as job:
            return _scaled(job, directory / "run", options, lambda argv: cluster.run("a", argv))


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _scaled(
    job: RunningJob | HostJob,
    run_dir: Path,
    options: argparse.Namespace,
    call: Callable[[list[str]], object],
) -> list[float]:
    """Scale a job so often, and return the pauses."""
    job.wait_for("checkpoint")
    for number in range(1, options.pauses + 1):
        size = options.workers[number % 2]
        call([sys.executable, "-m", "holdfast", "scale", str(run_dir), str(size)])
        launch = job.wait_for("launch", relaunch=number)
        job.wait_for("checkpoint", generation=launch["generation"])
    return _pauses(job.journal)


def _pauses(journal: Sequence[harness.Record]) -> list[float]:
    """Return the seconds from the last step of each launch to the first of the next one."""
    steps = [(record["now"], record["step"]) for record in journal if record["event"] == "step"]
    found = []
    for stop in (record for record in journal if record["event"] == "stopped"):
        before = max(now for now, step in steps if step <= stop["step"])
        after = min((now for now, step in steps if step > stop["step"]), default=None)
        if after is not None:
            found.append(after - before)
    return found


if __name__ == "__main__":
    main()
