"""The text of batch scripts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.batch.sbatch import BatchRequest, script_of
from holdfast.runtime.errors import UsageError


def request(sbatch: str = "", run: str = "train.py", chain: int | None = None) -> BatchRequest:
    return BatchRequest(
        tuple(shlex.split(sbatch)),
        tuple(shlex.split(run)),
        Path("/scratch/me/holdfast-train"),
        Path("/opt/venv/bin"),
        chain,
    )


def test_script_of_a_job_that_is_requeued() -> None:
    script = script_of(
        request("-N 1 -n 4 --time=2:00:00", "--save-every 10min train.py --lr 1"), ""
    )

    assert script.splitlines() == [
        "#!/bin/bash",
        f"#SBATCH --job-name={request().default_name}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH -N 1",
        "#SBATCH -n 4",
        "#SBATCH --time=2:00:00",
        "unset SLURM_STEP_ID SLURM_STEP_NUM_TASKS",
        "export PATH=/opt/venv/bin:$PATH",
        "exec holdfast run --save-every 10min train.py --lr 1",
    ]


def test_script_of_a_chain() -> None:
    lines = script_of(request("--time=60", chain=3), "c0ffee").splitlines()

    assert "#SBATCH --dependency=singleton" in lines
    assert "export HOLDFAST_CHAIN=c0ffee" in lines
    assert lines[-1] == "exec holdfast run --no-requeue --wait-lease 120 train.py"


@pytest.mark.parametrize(
    ("given_option", "left_out"),
    [
        ("-J mine", "--job-name=h"), ("-Jmine", "--job-name=h"), ("--job-name=x", "--job-name=h"),
        ("--job=x", "--job-name=h"), ("--open=truncate", "--open-mode=append"),
        ("--no-requeue", "--requeue"), ("--open-mode=truncate", "--open-mode=append"),
    ],
)  # fmt: skip
def test_option_of_the_user_replaces_ours(given_option: str, left_out: str) -> None:
    script = script_of(request(given_option), "")

    assert f"#SBATCH {left_out}" not in script
    assert f"#SBATCH {given_option}" in script


def test_job_is_named_after_its_run_directory_and_no_other() -> None:
    other = BatchRequest((), (), Path("/else/holdfast-train"), Path("/"))

    assert request().default_name.startswith("holdfast-train-")
    assert request().default_name != other.default_name


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: request(chain=0), "--chain must be at least 1"),
        (lambda: request("--dependency=afterok:3", chain=2), "leave --dependency out"),
        (lambda: request("-d afterok:3", chain=2), "leave --dependency out"),
        (lambda: request("--depend=afterok:3", chain=2), "leave --dependency out"),
        (lambda: request("--array=1-3"), "leave -a and --array out: all its tasks would have one"),
        (lambda: request("-a1-3"), "leave -a and --array out"),
        (lambda: request("-D /else"), "leave -D and --chdir out"),
        (lambda: request("--chdir=/else"), "leave -D and --chdir out"),
        (lambda: request("--comment='a\nb'"), "has several lines"),
        (lambda: request("--wait"), "leave --wait out"),
        (lambda: request("-W"), "leave -W out"),
        (lambda: request("--wrap=true"), "leave --wrap out"),
        (lambda: request("--test-only"), "leave --test-only out"),
    ],
)
def test_request_that_makes_no_chain_is_refused(made: object, words: str) -> None:
    assert callable(made)
    with pytest.raises(UsageError, match=words):
        made()


def test_requeue_that_slurm_would_refuse_is_not_submitted() -> None:
    words = {"sbatch": ("--no-requeue",), "run": ("train.py",), "run_dir": Path("/r")}
    made: Callable[..., BatchRequest] = partial(BatchRequest, **words, programs=Path("/bin"))

    with pytest.raises(UsageError, match="give --no-requeue after `run` as well"):
        made(requeues=True)
    assert made(requeues=False).sbatch == made(requeues=True, chain=2).sbatch


@pytest.mark.parametrize(
    ("sbatch", "workers", "words"),
    [
        ("--ntasks=4", 8, "8 workers will share 4 cores: --ntasks is 4"),
        ("-n 4", 5, "5 workers will share 4 cores"),
        ("-n4", 5, "5 workers will share 4 cores"),
        ("--ntasks=4", 4, None),
        ("--ntasks=1 -c 8", 8, None),
        ("--nodes=1", 8, None),
        ("--ntasks=4", None, None),
    ],
)
def test_more_workers_than_cores_are_warned_of(
    sbatch: str, workers: int | None, words: str | None
) -> None:
    warning = replace(request(sbatch), workers=workers).warning

    assert (warning is None) if words is None else str(warning).startswith(words)


_WORD = st.text(st.characters(exclude_characters="\n\0\r", exclude_categories=("Cs",)), min_size=1)


@given(st.lists(_WORD, min_size=1, max_size=4))
def test_shell_hands_over_each_word_as_it_was_typed(words: list[str]) -> None:
    made = BatchRequest((), ("train.py", *words), Path("/r"), Path("/bin"))

    last = script_of(made, "").rstrip("\n").rpartition("\n")[2]

    assert shlex.split(last) == ["exec", "holdfast", "run", "train.py", *words]


@pytest.mark.process
def test_script_is_one_that_bash_reads() -> None:
    script = script_of(request("--comment='it is mine'", "train.py 'a b' \"it's\"", chain=2), "x y")

    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "#SBATCH '--comment=it is mine'" in script
