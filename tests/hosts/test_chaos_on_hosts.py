"""``holdfast chaos`` strikes a job on its other hosts, and the job ends with the same bytes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import NETWORK, Cluster
from extended import extended
from workload import LONG, Undisturbed, request_of

from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.system.own_process import program_command

pytestmark = [pytest.mark.mpi, pytest.mark.process]

_MAIN = "from holdfast.runtime.cli.main import main; main()"
_WORKLOAD = replace(LONG, epochs=10)
"""1.4 seconds at least: what is struck at step 8 is struck before the end."""


@pytest.mark.parametrize(
    ("target", "victim", "lost"),
    [
        extended("worker #1 of b", "w3 of b", []),
        ("agent of b", "agent of b", ["b"]),
        extended("host b", "host b", ["b"]),
    ],
)
def test_strike_on_another_host_changes_no_byte(
    cluster: Cluster,
    tmp_path: Path,
    undisturbed: Undisturbed,
    target: str,
    victim: str,
    lost: list[str],
) -> None:
    (tmp_path / "plan").write_text(f"kill {target} at step 8")
    request = request_of(_WORKLOAD, tmp_path, workers=4, options=("--heartbeat-timeout", "20"))
    hosts = ("--hosts", "a:2,b:2", "--rsh", cluster.rsh, "--network", NETWORK)
    job = (*hosts, "--microbatches", str(request.microbatches), *request.options)
    out = tmp_path / "out"
    line = ("chaos", "--plan", str(tmp_path / "plan"), "--out", str(out), "--", "run", *job)
    command = program_command(_MAIN, *line, str(request.script), *request.argv)

    done = cluster.run("a", command, env=dict(os.environ), cwd=tmp_path, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    assert [told["victim"] for told in report["strikes"]] == [victim]
    assert report["sha256"] == undisturbed(_WORKLOAD)
    journal = read_journal(out / "struck" / "run" / "journal.jsonl")
    assert [record["host"] for record in journal if record["event"] == "host_lost"] == lost
    dead = {record["worker"] for record in journal if record["event"] == "failure"}
    assert dead == ({2, 3} if lost else {3})
    assert cluster.wait_empty("b") == []
