"""What a user is told when a job begins, and what the journal keeps of that."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import Run, settled
from probed import facts

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.head import beginning
from holdfast.runtime.head.beginning import tell_beginning
from holdfast.runtime.head.console import Teller
from holdfast.runtime.head.job_setup import JobSetup
from holdfast.runtime.head.preconditions import ScriptSource
from holdfast.runtime.host.launchers import MpiLibrary
from holdfast.runtime.hosts.checked_hosts import CheckedHosts
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.events import Incarnation, JobStarted, PreloadFailed
from holdfast.runtime.run.program import Program
from holdfast.runtime.system.devices import Devices


def setup_of(**fields: Any) -> JobSetup:
    """Return as much of a setup as is told when a job begins."""
    options = {"script": Path("/a/slow.py"), "run_dir": Path("/run"), "workers": 2}
    terms = {"microbatches": 2, "seed": 0, "threads": 1, "script_sha256": None, "argv": None}
    terms |= {"script": None, "script_from_here": None}
    terms |= {"modules": None, "initial": None}
    record = SimpleNamespace(**(terms | fields.pop("record", {})))
    asked = JobOptions(**(options | fields.pop("options", {})))
    given: dict[str, Any] = {"record": record, "history": _before(), "journal": Run()}
    given["lease"] = SimpleNamespace(is_renewed=False)
    setup = settled(asked, **(given | fields))
    setup.source = ScriptSource.of(setup.program.text)
    return setup


def _before(*hosts: str) -> SimpleNamespace:
    """Return a history of a job with these hosts."""
    return SimpleNamespace(history=SimpleNamespace(hosts=hosts))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have more cores than any job here has workers, and no device."""
    monkeypatch.setattr(beginning, "usable_cores", lambda: 64)


@pytest.fixture
def run() -> Run:
    return Run()


def told(batch: str = "", **fields: Any) -> list[str]:
    """Return the lines of the beginning of a job."""
    lines: list[str] = []
    setup = setup_of(**fields)
    teller = Teller(setup.journal, lines.append, is_quiet=setup.options.quiet)
    tell_beginning(setup, teller, batch)
    return lines


@pytest.mark.parametrize(
    ("fields", "beginning"),
    [
        ({"is_resumed": False}, "starting slow.py on 2 workers"),
        ({"is_resumed": True, "saved_step": 390}, "resuming slow.py from step 390 on 2 workers"),
        ({"is_resumed": True}, "starting slow.py from the beginning on 2 workers"),
        ({"is_resumed": True, "saved_step": 0}, "starting slow.py from step 0 on 2 workers"),
    ],
)
def test_job_begins_with_the_step_that_it_goes_on_from(
    fields: dict[str, Any], beginning: str
) -> None:
    assert told(**fields) == [f"{beginning} (2 microbatches, seed 0, 1 thread each) in /run"]


TURNS = "they take turns, so a step takes longer than with"
THREADS = "is faster, with other bytes"
NO_DEVICES = Devices()
TWO = Devices("CUDA_VISIBLE_DEVICES", ("4", "5"), ("H100",))
LOST = (
    "the journal knows of a checkpoint of step 390, but {} in /run/checkpoints: training {}; if "
    "you have that checkpoint, stop the job and put it back"
)
RESUMED: dict[str, Any] = {"is_resumed": True, "saved_step": 390}


def hosts(*slots: int, devices: Devices = NO_DEVICES, **of_all: Any) -> dict[str, Any]:
    """Return hosts a and b with these slots, and the devices of b, which has one core."""
    named = tuple(map(HostSlots, "ab", slots))
    network = IPv4Network("10.1.0.0/16")
    known = facts("a"), facts("b", devices=devices, cores=1)
    return {"checked_hosts": CheckedHosts(named, network, 1, known, **of_all)}


def sized(workers: int, cores: int = 64, threads: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a job of so many workers with work for all, here or on the cores of this host."""
    record = {"microbatches": max(workers, 2), "threads": threads}
    return {"options": {"workers": workers}, "record": record, "cores": cores, **fields}


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            sized(2, devices=TWO),
            [f"each worker has one of 2 devices: {TWO}"],
        ),
        (sized(3, devices=TWO), [f"3 workers share 2 devices: {TWO}"]),
        (sized(2, 2, 2), [f"2 workers of 2 threads share 2 cores: --threads 1 {THREADS}"]),
        (sized(2, 8, 8), [f"2 workers of 8 threads share 8 cores: --threads 4 {THREADS}"]),
        (sized(1, 2, 4), []),
        (sized(2, 4, 2), []),
        (sized(64, 2), [f"64 workers share 2 cores: {TURNS} 2 workers"]),
        (sized(2, 1), [f"2 workers share 1 core: {TURNS} 1 worker"]),
        (sized(2, 2), []),
        (
            sized(4, **hosts(2, 2)),
            [
                "2 hosts on the network 10.1.0.0/16: a:2, b:2",
                f"2 workers on b share 1 core: {TURNS} 1 worker",
            ],
        ),
        (sized(2, **hosts(2, 2)), ["2 hosts on the network 10.1.0.0/16: a:2, b:0"]),
        (
            sized(1, **hosts(0, 2, devices=TWO, variables={"A": "1", "B": "2"}, unlike=("C",))),
            [
                "2 hosts on the network 10.1.0.0/16: a:0, b:1",
                "the processors of the hosts differ: all workers have A=1 B=2",
                f"each worker on b has one of 2 devices: {TWO}",
                "C (--strict refuses such hosts)",
            ],
        ),
        (
            {"is_resumed": True, "saved_step": 9, "history": _before("a:4", "b:4")},
            [
                "the job before had the hosts a:4, b:4, and this one has this host alone; "
                "--hosts a:4,b:4 takes them again"
            ],
        ),
        ({"is_resumed": True, "saved_step": 9, "history": _before("a:4")}, []),
        ({"is_resumed": False, "history": _before("a:4", "b:4")}, []),
        (
            {"lease": SimpleNamespace(is_renewed=True)},
            [
                "the file system of /run has no locks (flock), so this job writes a sign of life "
                "into its lease every 10 s; should it be killed, the next one waits 60 s for "
                "another one, with --wait-lease"
            ],
        ),
        (
            {"is_resumed": True, "lost_step": 390},
            [LOST.format("none is left", "begins at step 0")],
        ),
        (
            {"is_resumed": True, "lost_step": 390, "saved_step": 380},
            [LOST.format("step 380 is the newest", "goes on from step 380")],
        ),
        *[
            (
                {"options": {"workers": 4}, "record": {"microbatches": number}},
                [f"{words}, and the others wait; give --microbatches 4 for all to compute"],
            )
            for number, words in (
                (1, "1 microbatch for 4 workers: only one worker computes"),
                (3, "3 microbatches for 4 workers: only 3 workers compute"),
            )
        ],
        *[
            (
                RESUMED
                | {
                    "options": {"initial": now and Path(now)},
                    "record": {"initial": begun, "modules": {}},
                },
                [
                    f"--initial w.npz is not taken: the run was begun with the weights of {whose}, "
                    "and goes on from its checkpoint; --fresh or another --run-dir begins with "
                    "those of w.npz"
                    for whose in named
                ],
            )
            for begun, now, named in (
                (None, "w.npz", ["the script"]),
                ("v.npz", "w.npz", ["v.npz"]),
                ("w.npz", "w.npz", []),
                ("w.npz", None, []),
            )
        ],
        *[
            (
                RESUMED | {"options": {"argv": ("--name", "a b")}, "record": {"argv": argv}},
                [
                    "the run was begun with no arguments, and slow.py has the arguments "
                    "\"--name 'a b'\" now: what is trained already stays as it is, and so does "
                    "what a checkpoint holds, as the learning rate of Keras; to train anew with "
                    "these, give --fresh or another --run-dir"
                ]
                * (argv == []),
            )
            for argv in ([], None, ["--name", "a b"])
        ],
    ],
)
def test_what_the_user_may_not_have_meant_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], lines: list[str]
) -> None:
    fields = dict(fields)
    cores, devices = fields.pop("cores", 64), fields.pop("devices", NO_DEVICES)
    monkeypatch.setattr(beginning, "usable_cores", lambda: cores)
    monkeypatch.setattr(beginning, "find_devices", lambda _: devices)

    assert told(**fields)[1:] == lines


def test_run_that_goes_on_with_another_script_says_so(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("two()")
    begun_with = hashlib.sha256(b"one()").hexdigest()
    same = hashlib.sha256(b"two()").hexdigest()
    fields: dict[str, Any] = {"is_resumed": True, "saved_step": 390, "options": {"script": script}}

    lines = told(**fields, record={"script_sha256": begun_with})
    (_, line) = lines
    assert line == (
        "slow.py has changed since this run began. The run goes on with the new "
        "script, but with the weights and the learning rate of its checkpoint; --fresh begins "
        "a new run"
    )

    lines = told(**fields, record={"script_sha256": same})
    assert len(lines) == 1
    (tmp_path / "helper.py").write_text("A = 1")
    script.write_text("import helper")
    changed = {"script_sha256": Program.of(script).script_sha256, "modules": {"helper.py": "old"}}
    assert told(**fields, record=changed)[1].startswith(
        "helper.py has changed since this run began"
    )
    fields["saved_step"] = None
    lines = told(**fields, record={"script_sha256": begun_with})
    assert len(lines) == 1


def test_run_that_goes_on_with_the_script_of_another_release_says_so(tmp_path: Path) -> None:
    scripts = [tmp_path / day / "train.py" for day in ("old", "new")]
    for script in scripts:
        script.parent.mkdir()
        script.touch()
    begun = {"script": str(scripts[0]), "script_from_here": "../old/train.py"}

    lines = told(is_resumed=True, saved_step=390, options={"script": scripts[1]}, record=begun)

    assert lines[1:] == [
        f"the run was begun with {scripts[0]}, and goes on with {scripts[1]}, which has the same "
        "text; --fresh begins a new run"
    ]


@pytest.mark.parametrize("text", ["import horovod.keras as hvd", "from horovod import keras"])
def test_script_for_horovod_is_told_where_its_way_is_described(tmp_path: Path, text: str) -> None:
    script = tmp_path / "slow.py"
    for content, count in ((text, 1), ("import keras", 0)):
        script.write_text(content)

        lines = told(options={"script": script})

        page = "docs/migration/horovod.md"
        assert [page in line for line in lines[1:]] == [True] * count


def test_fresh_run_says_where_the_old_ones_are_and_how_to_remove_several(tmp_path: Path) -> None:
    place, line = (
        {"run_dir": tmp_path},
        f"moved the previous run to {tmp_path}/previous-2 (--fresh)",
    )
    (tmp_path / "previous-2").mkdir()
    assert told(set_aside=tmp_path / "previous-2", options=place)[1:] == [line]

    (tmp_path / "previous-1").mkdir()
    (several,) = told(set_aside=tmp_path / "previous-2", options=place)[1:]

    assert several == f"{line}; 2 are there now, and `rm -r {tmp_path}/previous-*` removes them"


def test_module_that_is_not_there_is_told_and_recorded(run: Run) -> None:
    named = {"preload": ("tensorflow", "tensorflw", "json", "sys")}

    lines = told(is_resumed=False, options=named, journal=run)

    reason = "there is no such module; correct --preload or install it"
    assert lines[1:] == [f"tensorflw is not preloaded: {reason}"]
    assert run.records[0] == PreloadFailed("tensorflw", reason)


def test_begin_is_recorded_with_the_terms_of_the_run_and_its_batch_job(run: Run) -> None:
    asked = {"save_every": "50", "shrink": False, "mca": ("btl self",), "fresh": True}
    lines = told("Slurm job 7", is_resumed=False, options=asked, journal=run)

    assert lines[-1] == "Slurm job 7"
    started, incarnation = run.records
    assert isinstance(started, JobStarted)
    assert started.terms
    told_options = ("--save-every 50", "--shrink no", "--mca btl self")
    usual = JobStarted(2, 0, 2, 0, 1, "/a/slow.py", (), None, told_options)
    assert replace(started, terms=None) == usual
    assert incarnation == Incarnation("Slurm job 7")


def test_quiet_job_begins_with_warnings_alone(run: Run) -> None:
    library = MpiLibrary(Path("mpiexec"), "5.0.10")

    lines = told(is_resumed=False, options={"quiet": True}, library=library, journal=run)

    assert lines == [f"warning: {library.warning}"]
