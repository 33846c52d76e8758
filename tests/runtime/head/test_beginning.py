"""What a user is told when a job begins, and what the journal keeps of that."""

from __future__ import annotations

import dataclasses
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
from holdfast.runtime.head.job_setup import JobSetup, RunSoFar
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
    names = {field.name for field in dataclasses.fields(RunSoFar)} & set(fields)
    so_far: Any = {"history": _before()} | {name: fields.pop(name) for name in names}
    given = {"record": record, "run": RunSoFar(**so_far), "journal": Run()}
    given["lease"] = SimpleNamespace(is_renewed=False)
    setup = settled(asked, **(given | fields))
    setup.source = ScriptSource.of(setup.program.text)
    return setup


def _before(*hosts: str) -> SimpleNamespace:
    """Return a history of a job with these hosts."""
    return SimpleNamespace(history=SimpleNamespace(hosts=hosts))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have more cores than any job here has workers."""
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
    lines = told(**fields)

    (line,) = lines
    assert line.startswith(f"{beginning} (2 microbatches, seed 0")
    assert line.endswith("in /run")


@pytest.mark.parametrize(
    ("workers", "line"),
    [
        (2, "each worker has one of 2 devices: H100, CUDA_VISIBLE_DEVICES=4,5"),
        (3, "3 workers share 2 devices: H100, CUDA_VISIBLE_DEVICES=4,5"),
    ],
)
def test_devices_of_the_workers_are_told(
    monkeypatch: pytest.MonkeyPatch, workers: int, line: str
) -> None:
    found = Devices("CUDA_VISIBLE_DEVICES", ("4", "5"), ("H100",))
    monkeypatch.setattr(beginning, "find_devices", lambda _: found)
    terms = {"microbatches": workers}

    lines = told(is_resumed=False, options={"workers": workers}, record=terms)

    assert lines[1:] == [line]


@pytest.mark.parametrize(
    ("workers", "cores", "threads", "line"),
    [
        (2, 2, 2, "2 workers of 2 threads share 2 cores: --threads 1 is faster, with other bytes"),
        (2, 8, 8, "2 workers of 8 threads share 8 cores: --threads 4 is faster, with other bytes"),
        (1, 2, 4, None),
        (2, 4, 2, None),
    ],
)
def test_threads_that_a_run_has_kept_are_told_if_more_workers_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, workers: int, cores: int, threads: int, line: str | None
) -> None:
    monkeypatch.setattr(beginning, "usable_cores", lambda: cores)

    found = told(options={"workers": workers}, record={"microbatches": 8, "threads": threads})

    assert found[1:] == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("workers", "cores", "lines"),
    [
        (
            64,
            2,
            ["64 workers share 2 cores: they take turns, so a step takes longer than with 2 w"],
        ),
        (
            2,
            1,
            ["2 workers share 1 core: they take turns, so a step takes longer than with 1 worker"],
        ),
        (2, 2, []),
    ],
)
def test_more_workers_than_cores_are_told(
    monkeypatch: pytest.MonkeyPatch, workers: int, cores: int, lines: list[str]
) -> None:
    monkeypatch.setattr(beginning, "usable_cores", lambda: cores)
    terms = {"microbatches": workers}

    found = told(is_resumed=False, options={"workers": workers}, record=terms)[1:]

    assert [line[: len(lines[0])] for line in found] == lines


def test_more_workers_than_cores_of_a_host_are_told_with_its_name() -> None:
    hosts = (HostSlots("a", 2), HostSlots("b", 2))
    network = IPv4Network("10.1.0.0/16"), ("10.1.0.1", "10.1.0.2")

    lines = told(
        is_resumed=False,
        checked_hosts=CheckedHosts(hosts, *network, 1, (facts("a"), facts("b", cores=1))),
        options={"workers": 4},
        record={"microbatches": 4},
    )

    assert [line for line in lines if "cores" in line or "core:" in line] == [
        "2 workers on b share 1 core: they take turns, so a step takes longer than with 1 worker"
    ]


def test_hosts_their_network_and_their_devices_are_told() -> None:
    hosts = (HostSlots("a", 0), HostSlots("b", 2))
    network = IPv4Network("10.1.0.0/16"), ("10.1.0.1", "10.1.0.2")
    two = Devices("CUDA_VISIBLE_DEVICES", ("0", "1"))

    lines = told(
        is_resumed=False,
        checked_hosts=CheckedHosts(
            hosts, *network, 1, (facts("a"), facts("b", devices=two)), {"A": "1", "B": "2"}, ("C",)
        ),
    )

    assert lines[1:] == [
        "2 hosts on the network 10.1.0.0/16: a:0, b:2",
        "the processors of the hosts differ: all workers have A=1 B=2",
        "each worker on b has one of 2 devices: CUDA_VISIBLE_DEVICES=0,1",
        "C (--strict refuses such hosts)",
    ]


def test_hosts_are_told_with_the_workers_that_they_get() -> None:
    hosts = (HostSlots("a", 2), HostSlots("b", 2))
    network = IPv4Network("10.1.0.0/16"), ("10.1.0.1", "10.1.0.2")

    lines = told(
        is_resumed=False,
        checked_hosts=CheckedHosts(hosts, *network, 1, (facts("a"), facts("b"))),
        options={"workers": 2},
    )

    assert lines[1:] == ["2 hosts on the network 10.1.0.0/16: a:2, b:0"]


def test_resume_on_this_host_alone_is_told_of_the_hosts_before() -> None:
    before = _before("a:4", "b:4")
    hint = (
        "the job before had the hosts a:4, b:4, and this one has this host alone; "
        "--hosts a:4,b:4 takes them again"
    )

    assert told(is_resumed=True, saved_step=9, history=before)[1:] == [hint]
    assert told(is_resumed=True, saved_step=9, history=_before("a:4"))[1:] == []
    assert told(is_resumed=False, history=before)[1:] == []


def test_directory_without_locks_is_told_with_what_follows_a_death() -> None:
    lines = told(is_resumed=False, lease=SimpleNamespace(is_renewed=True))

    line = lines[1]
    assert "the file system of /run has no locks (flock)" in line
    assert "every 10 s" in line
    assert "the next one waits 60 s" in line


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


def test_run_that_goes_on_with_other_arguments_says_so() -> None:
    """A search over arguments in one directory would show the first result again and again."""
    fields: dict[str, Any] = {"is_resumed": True, "saved_step": 390}
    options = {"argv": ("--name", "a b")}

    lines = told(**fields, options=options, record={"argv": []})
    (_, line) = lines
    assert line == (
        "the run was begun with no arguments, and slow.py has the arguments "
        "\"--name 'a b'\" now: what is trained already stays as it is, and so does what a "
        "checkpoint holds, as the learning rate of Keras; to train anew with these, give "
        "--fresh or another --run-dir"
    )

    for argv in (None, ["--name", "a b"]):
        lines = told(**fields, options=options, record={"argv": argv})
        assert len(lines) == 1


@pytest.mark.parametrize(
    ("begun", "now", "lines"),
    [
        (None, "w.npz", ["the script"]),
        ("v.npz", "w.npz", ["v.npz"]),
        ("w.npz", "w.npz", []),
        ("w.npz", None, []),
    ],
)
def test_weights_to_begin_with_are_not_taken_by_a_run_that_goes_on(
    begun: str | None, now: str | None, lines: list[str]
) -> None:
    options = {"initial": None if now is None else Path(now)}

    found = told(
        is_resumed=True, saved_step=5, options=options, record={"initial": begun, "modules": {}}
    )[1:]

    assert found == [
        f"--initial w.npz is not taken: the run was begun with the weights of {whose}, and goes on "
        "from its checkpoint; --fresh or another --run-dir begins with those of w.npz"
        for whose in lines
    ]


@pytest.mark.parametrize(
    ("microbatches", "line"),
    [
        (1, "1 microbatch for 4 workers: only one worker computes, and the others wait"),
        (3, "3 microbatches for 4 workers: only 3 workers compute, and the others wait"),
    ],
)
def test_workers_without_work_are_told_with_their_number(microbatches: int, line: str) -> None:
    lines = told(options={"workers": 4}, record={"microbatches": microbatches})

    assert lines[1:] == [f"{line}; give --microbatches 4 for all to compute"]
    lines = told(options={"workers": 4}, record={"microbatches": 4})
    assert len(lines) == 1


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


@pytest.mark.parametrize(
    ("fields", "rest"),
    [
        (
            {},
            "none is left in /run/checkpoints: training begins at step 0; if you have that "
            "checkpoint, stop the job and put it back",
        ),
        (
            {"saved_step": 380},
            "step 380 is the newest in /run/checkpoints: training goes on from step 380; if you "
            "have that checkpoint, stop the job and put it back",
        ),
    ],
    ids=["all lost", "the newest lost"],
)
def test_lost_checkpoint_is_told_with_where_training_begins(
    fields: dict[str, Any], rest: str
) -> None:
    lines = told(is_resumed=True, lost_step=390, **fields)

    assert lines[1:] == [f"the journal knows of a checkpoint of step 390, but {rest}"]


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
