"""What keeps a job from running is told before anything starts; odd surroundings do not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from workload import (
    EVEN,
    SCRIPT,
    PreparedJob,
    Undisturbed,
    assert_whole,
    request_of,
)

from holdfast.testing import start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

IN_A_NAMESPACE = ("unshare", "--net")


def test_loopback_interface_that_is_down_is_named_before_anything_starts(tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run([*IN_A_NAMESPACE, "true"], check=False).returncode:
        pytest.skip("to make a network namespace takes root")
    line = [*IN_A_NAMESPACE, *request_of(EVEN, tmp_path / "run", workers=2).command()]

    done = subprocess.run(line, capture_output=True, text=True, check=False)

    words = "the loopback interface lo is down: `ip link set lo up`, then run again"
    assert (done.returncode, done.stderr) == (2, f"holdfast: error: {words}\n")
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_job_runs_among_settings_and_names_that_are_not_its_own(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A user without a home, variables of an MPI job that is over, a site that places ranks, a
    folder whose name the locale cannot spell, a module with the name of one of Python's."""
    folder = tmp_path / "Übung"
    folder.mkdir()
    script = folder / "träining.py"
    shutil.copy(SCRIPT, script)
    with script.open("a") as text:
        text.write(
            "\nimport os, statistics\nprint('word', statistics.WORD, os.environ.get('HOME'))\n"
        )
    (folder / "statistics.py").write_text("WORD = 'mine'\n")
    request = request_of(EVEN, folder / "run", workers=3)
    poisoned = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": "ppr:1:node",
        "PRTE_MCA_prte_default_hostfile": "/nowhere",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    fields = {field: getattr(request, field) for field in request.__dataclass_fields__}
    job = PreparedJob(
        **{**fields, "script": script, "environment": poisoned},
        preparation="import os; os.environ.pop('HOME', None)\n",
    )

    with start_job(job) as running:
        ended = running.wait()

    assert_whole(ended, EVEN, undisturbed(EVEN))
    assert "word mine None" in ended.stdout
