"""What a job shows of itself to its host, and what of the host it shows to the script."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import psutil
import pytest
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.runtime.testing import start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(90)]

LAUNCHER = "prterun"
"""The name of mpiexec's process, whose own listener no option binds to one interface."""


def test_nobody_but_mpiexec_listens_beyond_the_loopback_interface(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(request_of(LONG, tmp_path, workers=3)) as running:
        running.wait_for("step", step=20)
        processes = running.processes()
        listening = {
            (processes[found.pid], found.laddr.ip)
            for found in psutil.net_connections("tcp")
            if found.status == psutil.CONN_LISTEN and found.pid in processes
        }
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    names = set(processes.values())
    assert names >= {"holdfast-agent", "holdfast-w0", "holdfast-w1", "holdfast-w2", LAUNCHER}
    reachable = {(name, ip) for name, ip in listening if not ipaddress.ip_address(ip).is_loopback}
    assert {name for name, _ in reachable} <= {LAUNCHER}
