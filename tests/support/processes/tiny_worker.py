"""Workers without MPI for tests of the agent.

``argv`` of the configuration says what each does: ``"2:exit_1"`` concerns
worker 2, ``"exit_1"`` all others.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from holdfast.recovery.event import Event
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import Notice
from holdfast.runtime.system.channel import Channel, to_message
from holdfast.runtime.system.worker_status import (
    OwnReport,
    Phase,
    Pulse,
    ScriptEnded,
    WorkerLeaving,
    WorkerStatus,
    pulse_interval_s,
)


class Tiny:
    """What a tiny worker has at hand."""

    def __init__(self, config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> None:
        self.config = config
        self.control = Channel.adopt(control_fd)
        self.page = WorkerStatus(heartbeat_fd)

    def report(self, kind: str, **fields: object) -> None:
        """Tell the test something, through the agent."""
        report = {"kind": kind, **fields}
        told = {"kind": "worker_report", "worker": self.config.worker, "report": report}
        self.tell(Notice(json.dumps(told)))

    def tell(self, report: Event | OwnReport) -> None:
        """Report as every worker does."""
        self.control.send(to_message(report))

    def behaviour(self) -> str:
        argv, me = self.config.options.argv, f"{self.config.worker}:"
        own = [a.partition(":")[2] for a in argv if a.startswith(me)]
        common = [a for a in argv if ":" not in a]
        return (own + common + ["leave"])[0]


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> None:
    tiny = Tiny(config, control_fd, heartbeat_fd)
    tiny.report("hello", pid=os.getpid())
    Pulse(tiny.page, pulse_interval_s(config.options.heartbeat_timeout_s)).start()
    tiny.page.phase = Phase.TRAINING
    tiny.page.commit(40 + config.worker)
    tiny.report("joined", pid=os.getpid())
    globals()[tiny.behaviour()](tiny)


def leave(tiny: Tiny) -> NoReturn:
    tiny.tell(WorkerLeaving(tiny.config.worker))
    os._exit(0)


def come_to_the_end(tiny: Tiny) -> None:
    tiny.tell(ScriptEnded(tiny.config.worker))
    tiny.report("told", kind_told=(tiny.control.receive() or {}).get("kind"))
    leave(tiny)


def wait(tiny: Tiny) -> None:
    while True:
        signal.pause()


def exit_0(tiny: Tiny) -> None:
    os._exit(0)


def exit_1(tiny: Tiny) -> None:
    os._exit(1)


def leave_then_exit_3(tiny: Tiny) -> None:
    tiny.tell(WorkerLeaving(tiny.config.worker))
    os._exit(3)


def return_(tiny: Tiny) -> None:
    return


def sys_exit_4(tiny: Tiny) -> None:
    sys.exit(4)


def raise_(tiny: Tiny) -> None:
    raise ValueError("the loss is not finite")


def segfault(tiny: Tiny) -> None:
    ctypes.string_at(0)


def abort(tiny: Tiny) -> None:
    os.abort()


def sigkill(tiny: Tiny) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sigalrm(tiny: Tiny) -> None:
    os.kill(os.getpid(), signal.SIGALRM)


def stop(tiny: Tiny) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_gil(tiny: Tiny) -> None:
    ctypes.PyDLL(None).pause()


def compute_in_python(tiny: Tiny) -> None:
    end = time.monotonic() + 1.5 * tiny.config.options.heartbeat_timeout_s
    while time.monotonic() < end:
        pass
    leave(tiny)


def compute_in_c(tiny: Tiny) -> None:
    ctypes.CDLL(None).usleep(int(1.5e6 * tiny.config.options.heartbeat_timeout_s))
    leave(tiny)


def leave_when_asked(tiny: Tiny) -> None:
    while not tiny.page.requests:
        tiny.config.worker  # noqa: B018
    tiny.report("asked", requests=int(tiny.page.requests))
    leave(tiny)


def start_helper(tiny: Tiny) -> None:
    helper = subprocess.Popen(["sleep", "600"])
    tiny.report("helper", pid=helper.pid)
    wait(tiny)


def print_lines(tiny: Tiny) -> None:
    print("one line")
    print("no end", end="", flush=True)
    sys.stderr.write("to stderr\n")
    leave(tiny)


def print_much(tiny: Tiny) -> None:
    line = f"{tiny.config.worker}" * 79 + "\n"
    for _ in range(200):
        sys.stdout.write(line * 100)
    sys.stdout.flush()
    leave(tiny)


def print_much_at_gate(tiny: Tiny) -> None:
    while not (Path(tiny.config.options.run_dir) / "gate").exists():
        time.sleep(0.01)
    print_much(tiny)


def say_noise(tiny: Tiny) -> None:
    os.write(tiny.control.fileno(), b"this is no JSON\n")
    wait(tiny)


def open_kinds() -> list[str]:
    """Return what each open descriptor stands for."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    # the descriptor by which the directory was listed is closed by now
    return sorted(os.readlink(link).partition(":")[0] for link in links if os.path.lexists(link))


def tell_place(tiny: Tiny) -> None:
    tiny.report(
        "place",
        directory=os.getcwd(),
        environment={k: v for k, v in os.environ.items() if k.startswith(("PMIX_", "HF_", "TMP"))},
        stdin=os.readlink("/proc/self/fd/0"),
        handlers=[n.name for n in signal.valid_signals() if callable(signal.getsignal(n))],
        leads_group=os.getpgrp() == os.getpid() == os.getsid(0),
        parent=os.getppid(),
        targets=open_kinds(),
        modules=[name for name in ("numpy", "mpi4py", "mpi4py.MPI") if name in sys.modules],
    )
    leave(tiny)
