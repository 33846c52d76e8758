"""Where options come from, and in which order."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import DOCTOR
from holdfast.runtime.options.sources import (
    Sources,
    build_options,
    check_script,
    mistyped_variables,
    read_config_file,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def _built(*flags: tuple[str, Any], environ: dict[str, str] | None = None, **table: Any) -> Any:
    sources = Sources(dict(flags), environ or {}, table, Path("/here"))
    return build_options(Path("train.py"), ("-x",), sources)


def test_without_sources_the_defaults_hold_and_nothing_has_an_origin() -> None:
    built = _built()

    assert built.options == JobOptions(
        Path("/here/train.py"), Path("/here/holdfast-train"), argv=("-x",)
    )
    assert built.origins == {}


def test_flag_comes_before_variable_before_file() -> None:
    built = _built(
        ("workers", "2"),
        environ={"HOLDFAST_WORKERS": "3", "HOLDFAST_SPARES": "3"},
        workers=4,
        spares=4,
        seed=4,
    )

    options = built.options
    assert (options.workers, options.spares, options.seed) == (2, 3, 4)
    assert built.origins == {
        "workers": "--workers",
        "spares": "HOLDFAST_SPARES",
        "seed": "holdfast.toml",
    }


def test_paths_are_meant_from_the_working_directory() -> None:
    built = _built(("metrics_file", "k"), environ={"HOLDFAST_RUN_DIR": "/abs"}, mpiexec="mpiexec5")

    assert built.options.metrics_file == Path("/here/k")
    assert built.options.run_dir == Path("/abs")
    assert built.options.mpiexec == Path("mpiexec5")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("~/runs/x", "/home/me/runs/x"),
        ("$SCRATCH/x", "/scratch/me/x"),
        ("runs/${NAME}-1", "/here/runs/a-1"),
        ("cost$", "/here/cost$"),
        ("a~b", "/here/a~b"),
    ],
)
@pytest.mark.parametrize("place", ["flag", "variable", "file"])
def test_home_and_variables_are_replaced_in_paths(
    monkeypatch: pytest.MonkeyPatch, place: str, text: str, path: str
) -> None:
    for name, value in {"HOME": "/home/me", "SCRATCH": "/scratch/me", "NAME": "a"}.items():
        monkeypatch.setenv(name, value)
    given = {
        "flag": Sources({"run_dir": text}, {}, {}, Path("/here")),
        "variable": Sources({}, {"HOLDFAST_RUN_DIR": text}, {}, Path("/here")),
        "file": Sources({}, {}, {"run_dir": text}, Path("/here")),
    }

    assert build_options(Path("t.py"), (), given[place]).options.run_dir == Path(path)


@pytest.mark.parametrize(
    ("text", "missing"),
    [("$NOWHERE/x", "a variable"), ("x/${NOWHERE}", "a variable"), ("~nobody-here/x", "a home")],
)
def test_path_with_a_name_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, missing: str
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)

    complaint = re.escape(f"holdfast.toml run-dir: '{text}' names {missing} that is not there")
    with pytest.raises(UsageError, match=complaint):
        build_options(Path("t.py"), (), Sources({}, {}, {"run_dir": text}, Path("/")))


def test_command_takes_only_its_own_options_from_environment_and_file() -> None:
    table = {"spares": 3, "network": "eth1"}
    sources = Sources({}, {"HOLDFAST_SAVE_EVERY": "7"}, table, Path("/"), DOCTOR)

    options = build_options(Path("train.py"), (), sources).options

    assert (options.save_every, options.spares, options.network) == (None, 0, "eth1")


@pytest.mark.parametrize(
    ("flags", "environ", "table", "complaint"),
    [
        ({"workers": "many"}, {}, {}, "^--workers: 'many' is not a valid integer$"),
        ({}, {"HOLDFAST_SEED": "1.5"}, {}, "^HOLDFAST_SEED: '1.5' is not a valid integer$"),
        ({}, {}, {"spares": "x"}, "^holdfast.toml spares: 'x' is not a valid integer$"),
        ({}, {}, {"workers": True}, "^holdfast.toml workers: True is not a valid integer$"),
        ({}, {"HOLDFAST_FRESH": "perhaps"}, {}, "'perhaps' is neither yes nor no"),
        ({}, {}, {"heartbeat_timeout": [1]}, r"\[1\] is not a time; give seconds"),
        ({}, {}, {"run_dir": 7}, "7 is not a path"),
        ({}, {}, {"inject": [7]}, r"\[7\] is not a list of words"),
        ({}, {}, {"save_every": ["x"]}, r"\['x'\] is not a text"),
        ({"workers": "0"}, {}, {}, r"-n \(workers\) must be at least 1, got 0"),
        (
            {},
            {"HOLDFAST_SAVE_EVERY": "often"},
            {},
            "^HOLDFAST_SAVE_EVERY: 'often' is not a valid time to save",
        ),
        (
            {},
            {},
            {"save_every": "10mn"},
            "^holdfast.toml save-every: '10mn' is not a valid time",
        ),
        ({}, {}, {"workers": 0}, "^holdfast.toml workers must be at least 1, got 0"),
    ],
)
def test_value_that_cannot_be_read_is_refused_with_its_source(
    flags: dict[str, Any], environ: dict[str, str], table: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        build_options(Path("t.py"), (), Sources(flags, environ, table, Path("/")))


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("no", False)]
)
def test_switches_in_the_environment(text: str, *, is_on: bool) -> None:
    assert _built(environ={"HOLDFAST_SHRINK": text}).options.shrink is is_on


def test_shown_options_are_a_file_that_says_the_same() -> None:
    built = _built(
        ("workers", "3"),
        ("shrink", False),
        environ={
            **{"HOLDFAST_SAVE_EVERY": "10min", "HOLDFAST_PRELOAD": "numpy,h5py"},
            "HOLDFAST_INJECT": "kill worker=2 step=30;stop worker=1 step=9",
        },
        metrics_file="k",
    )

    text = "\n".join(built.lines())
    table = {key.replace("-", "_"): value for key, value in tomllib.loads(text)["run"].items()}
    again = build_options(Path("train.py"), ("-x",), Sources({}, {}, table, Path("/here")))

    assert again.options == built.options
    assert built.options.faults == ("kill worker=2 step=30", "stop worker=1 step=9")
    assert 'save-every = "10min"  # HOLDFAST_SAVE_EVERY' in text
    assert "shrink = false  # --no-shrink" in text
    assert 'metrics-file = "/here/k"  # holdfast.toml' in text
    assert "max-restarts = 3  # default" in text
    assert "# threads is not set: cores / N  (default)" in text


@pytest.mark.parametrize("name", ["a\U0001f600b", "é", 'a"b', "a\\b", "a\tb", "a\x7fb"])
def test_any_name_is_shown_as_toml(name: str) -> None:
    text = "\n".join(_built(("run_dir", name)).lines())

    assert tomllib.loads(text)["run"]["run-dir"] == f"/here/{name}"
    assert text.isascii()


def test_argument_of_several_lines_sets_no_option() -> None:
    built = build_options(
        Path("train.py"), ("x\nstrict = true",), Sources({}, {}, {}, Path("/here"))
    )

    assert next(built.lines()) == r'# script: ["/here/train.py", "x\nstrict = true"]'


def test_variable_that_is_nearly_an_option_is_named_with_it() -> None:
    ours = ("AGENT", "GENERATION", "CHAIN", "TEST_JOB", "VENV", "WORKERS")
    environ = {f"HOLDFAST_{name}": "1" for name in ours} | {"WORKER": "1", "HOLDFAST_WORKER": "3"}

    assert list(mistyped_variables(environ)) == [
        "warning: HOLDFAST_WORKER is no option of holdfast and is ignored; "
        "did you mean HOLDFAST_WORKERS?"
    ]


@pytest.mark.parametrize(
    ("service", "environ"),
    [
        (
            "holdfast-metrics",
            {
                "HOLDFAST_METRICS_SERVICE_HOST": "10.96.0.8",
                "HOLDFAST_METRICS_SERVICE_PORT": "9090",
                "HOLDFAST_METRICS_SERVICE_PORT_HTTP": "9090",
                "HOLDFAST_METRICS_PORT": "tcp://10.96.0.8:9090",
                "HOLDFAST_METRICS_PORT_9090_TCP": "tcp://10.96.0.8:9090",
                "HOLDFAST_METRICS_PORT_9090_TCP_PROTO": "tcp",
                "HOLDFAST_METRICS_PORT_9090_TCP_PORT": "9090",
                "HOLDFAST_METRICS_PORT_9090_TCP_ADDR": "10.96.0.8",
            },
        ),
        (
            "holdfast",
            {
                "HOLDFAST_SERVICE_HOST": "10.96.0.7",
                "HOLDFAST_SERVICE_PORT": "22",
                "HOLDFAST_PORT": "tcp://10.96.0.7:22",
            },
        ),
        ("holdfast-metrics", {"HOLDFAST_METRICS_PORT": "udp://10.96.0.8:9090"}),
    ],
)
def test_variables_of_a_service_of_kubernetes_are_told_of_once(
    service: str, environ: dict[str, str]
) -> None:
    others = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}

    assert list(mistyped_variables(environ | others)) == [
        f"warning: the variables of the Kubernetes service {service} are ignored; "
        "enableServiceLinks: false in the pod keeps them out"
    ]
    assert list(mistyped_variables({"HOLDFAST_METRICS_PORT": "9090"})) != []


def test_number_of_the_batch_system_that_makes_no_sense_is_refused_with_its_place() -> None:
    tasks = {"workers": ("SLURM_NTASKS of Slurm job 7", 0)}

    with pytest.raises(
        UsageError, match=r"^SLURM_NTASKS of Slurm job 7 must be at least 1, got 0$"
    ):
        build_options(Path("t.py"), (), Sources({}, {}, {}, Path("/"), allocation=tasks))


def test_config_file_that_nobody_may_read_as_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    unread = r"toml cannot be read: .*; correct it or move it"
    outside = r"sets 'workers' outside a table; .* heading \[run\]"
    for content, words in (
        *((b"workers 4", unread), (b'[run]\nsave-every = "\xff"\n', unread)),
        (b"workers = 4", outside),
    ):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read_config_file(path)
    with pytest.raises(UsageError, match=r"cannot be read: .*; correct it or move it away"):
        read_config_file(tmp_path)


@pytest.mark.parametrize(
    ("flags", "allocation", "workers", "origin"),
    [
        ({}, {}, 6, "slots of --hosts"),
        ({"spares": 1}, {}, 5, "slots of --hosts"),
        ({"workers": 3}, {}, 3, "--workers"),
        ({}, {"workers": ("SLURM_NTASKS of Slurm job 7", 2)}, 6, "slots of --hosts"),
        (
            {"hosts": None},
            {"hosts": ("SLURM_JOB_NODELIST", "a:2,b:2"), "workers": ("SLURM_NTASKS", 2)},
            *(4, "slots of SLURM_JOB_NODELIST"),
        ),
    ],
    ids=["all slots", "less the spares", "as asked", "not the tasks of one host", "batch job"],
)
def test_workers_fill_the_hosts_that_are_named(
    flags: dict[str, Any], allocation: Any, workers: int, origin: str
) -> None:
    given = {"hosts": "a:4,b:2"} | flags
    sources = Sources(given, {}, {}, Path("/here"), allocation=allocation)

    built = build_options(Path("train.py"), (), sources)

    assert (built.options.workers, built.origins["workers"]) == (workers, origin)


@pytest.mark.parametrize(
    ("workers", "spares", "words"),
    [("4", "1", "-n 4 with --spares 1 needs 5 slots"), ("6", "0", "-n 6 needs 6 slots")],
)
def test_more_workers_than_slots_are_refused(workers: str, spares: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        _built(("hosts", "a:2,b:2"), ("workers", workers), ("spares", spares))

    assert str(caught.value) == (
        f"{words}, and the hosts a:2,b:2 have 4; ask for fewer workers, or name more slots or hosts"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (None, "train.py does not exist; give the path of a Python"),
        (Path.mkdir, "train.py is not a readable file; give the path"),
        ("train.ipynb", "train.ipynb is a notebook; make a script of it: `jupyter nbconvert --to"),
        ("python3.11", "python3.11 does not exist; leave Python out, as in `holdfast run -n 4 tr"),
        (Path.touch, ""),
    ],
)
def test_script_that_is_no_readable_file_of_python_is_refused(
    tmp_path: Path, make: Any, words: str
) -> None:
    script = tmp_path / (make if isinstance(make, str) else "train.py")
    if callable(make):
        make(script)
    elif script.suffix == ".ipynb":
        script.write_text("{}")

    with pytest.raises(UsageError, match=re.escape(words)) if words else nullcontext():
        check_script(script)
