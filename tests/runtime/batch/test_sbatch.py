"""The batch script, the calls of Slurm's programs, and times as people write them."""

from __future__ import annotations

import math
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.batch import sbatch
from holdfast.runtime.batch.sbatch import (
    BatchRequest,
    SlurmRefused,
    clock_s,
    nodes_of,
    read_duration,
    requeue,
    script_of,
    submit,
    time_left_s,
)
from holdfast.runtime.errors import UsageError

_WORD = st.text(st.characters(exclude_characters="\n\0\r", exclude_categories=("Cs",)), min_size=1)


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


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ("-N 4", 1), ("-N4", 1), ("--nodes=2-4", 1), ("-N 1", 0), ("--nodes=1", 0), ("-n 4", 0),
        ("-N 4 --no-kill=off", 0), ("-N 4 -k", 0),
    ],
)  # fmt: skip
def test_allocation_of_several_nodes_outlives_the_loss_of_one(options: str, ours: int) -> None:
    lines = script_of(request(options), "").splitlines()

    assert lines.count("#SBATCH --no-kill") == ours


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
        (lambda: request("-N2 : -N1"), "leave : and hetjob out: holdfast has the first"),
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


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _write(programs: Path, name: str, line: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{line}\n")
    (programs / name).chmod(0o755)


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("echo 1:30", 90.0),
        ("echo 1-00:00:00", 86_400.0),
        ("echo UNLIMITED", math.inf),
        ("echo", None),
        ("echo 'Invalid job id specified' >&2; exit 1", None),
    ],
)
def test_time_left(programs: Path, line: str, seconds: float | None) -> None:
    _write(programs, "squeue", line)

    assert time_left_s("7") == seconds


@pytest.mark.process
def test_filters_of_the_user_hide_no_job(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    _write(programs, "squeue", 'test -z "$SQUEUE_STATES" && echo 1:30')

    assert time_left_s("7") == 90.0


@pytest.mark.process
def test_requeue_names_the_job(programs: Path) -> None:
    _write(programs, "scontrol", f'echo "$@" > {programs}/said')

    requeue("7_3")

    assert (programs / "said").read_text() == "requeue 7_3\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("users", "excluded"), [("(null)", "n3"), ("n[7-8]", "n7,n8,n3"), ("n3", "n3")]
)
def test_requeue_after_a_loss_asks_for_other_nodes_instead(
    programs: Path, users: str, excluded: str
) -> None:
    _write(programs, "squeue", f"echo '{users}|gpu|(null)|normal|2:00|[fast|big]'")
    _write(programs, "sbatch", f'echo "$@" > {programs}/asked')
    _write(programs, "scontrol", f'test -z "$1" && cat > {programs}/said')

    requeue("7", ["n3"], nodes=2)

    assert (programs / "asked").read_text().split() == [
        *("--test-only", "--nodes=2", f"--exclude={excluded}"),
        *("--partition=gpu", "--qos=normal", "--time=2:00", "--constraint=[fast|big]"),
    ]
    assert (programs / "said").read_text().splitlines() == [
        "requeue 7",
        f"update JobId=7 ExcNodeList={excluded}",
    ]


@pytest.mark.process
def test_requeued_job_that_needs_the_lost_node_does_not_exclude_it(programs: Path) -> None:
    """Slurm would hold it for good, even when the node is back."""
    _write(
        programs,
        "squeue",
        "case $* in *%x*) echo '(null)|gpu|(null)|(null)|2:00|(null)';; "
        "*) echo 'n1|n[1-2]|RUNNING';; esac",
    )
    _write(programs, "sbatch", "echo 'Requested node configuration is not available' >&2; exit 1")
    _write(programs, "scontrol", f'echo "$@" >> {programs}/said; cat >> {programs}/said')

    requeue("7", ["n3"], nodes=3)

    assert (programs / "said").read_text() == "requeue 7\n"


@pytest.mark.process
@pytest.mark.parametrize(("state", "is_asked_again"), [("RUNNING", True), ("PENDING", False)])
def test_job_is_requeued_even_if_slurm_excludes_no_node(
    programs: Path, state: str, *, is_asked_again: bool
) -> None:
    terms = "n9|gpu|(null)|(null)|2:00|(null)"
    _write(programs, "squeue", f"case $* in *%x*) echo '{terms}';; *) echo 'n1|n1|{state}';; esac")
    _write(programs, "sbatch", "true")
    _write(programs, "scontrol", f'test -n "$1" && echo "$@" > {programs}/said')

    requeue("7", ["n3"])

    assert (programs / "said").exists() == is_asked_again


@pytest.mark.process
@pytest.mark.parametrize(
    ("line", "is_lost", "is_running"),
    [
        ("n1|n[1-3]|RUNNING", False, True),
        ("n1|n[2-3]|RUNNING", True, True),
        ("n/a||PENDING", False, False),
    ],
)
def test_job_that_has_lost_the_node_of_its_script(
    programs: Path, line: str, *, is_lost: bool, is_running: bool
) -> None:
    _write(programs, "squeue", f"echo '{line}'")

    nodes = nodes_of("7")

    assert (nodes.script_is_lost, nodes.is_running) == (is_lost, is_running)


@pytest.mark.process
def test_refusal_is_told(programs: Path) -> None:
    _write(programs, "scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")

    with pytest.raises(SlurmRefused, match="scontrol: Requested operation is presently disabled"):
        requeue("7")


@pytest.mark.process
def test_controller_that_does_not_answer_costs_a_bounded_time(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch, "ANSWERS_WITHIN_S", 0.2)
    _write(programs, "scontrol", "exec sleep 600")

    with pytest.raises(SlurmRefused, match="scontrol has not answered"):
        requeue("7")


@pytest.mark.process
@pytest.mark.parametrize(("said", "job"), [("12", "12"), ("12;cluster", "12"), ("hello", None)])
def test_submitted_job(programs: Path, said: str, job: str | None) -> None:
    _write(programs, "sbatch", f"cat > {programs}/script; echo '{said}'")

    if job is None:
        with pytest.raises(SlurmRefused, match="said 'hello' and no job id"):
            submit("#!/bin/sh\n")
    else:
        assert submit("#!/bin/sh\n") == job
    assert (programs / "script").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("15min", 900.0), ("1.5 h", 5400.0),
        ("2d", 172_800.0), ("1:30", 90.0), ("2:00:00", 7200.0), ("1-12:00:00", 129_600.0),
    ],
)  # fmt: skip
def test_duration_is_read(text: object, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "1:2:3:4", "nan", "inf", True, None])
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a time; give seconds"):
        read_duration(text)


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "90"])
def test_words_of_squeue_are_no_time(text: str) -> None:
    assert clock_s(text) is None
