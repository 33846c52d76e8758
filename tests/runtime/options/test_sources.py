"""Where options come from, and in which order."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import DOCTOR, read_hosts
from holdfast.runtime.options.sources import (
    BuiltOptions,
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


def _built(
    flags: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    table: dict[str, Any] | None = None,
    argv: tuple[str, ...] = ("-x",),
    **more: Any,
) -> BuiltOptions:
    sources = Sources(flags or {}, environ or {}, table or {}, Path("/here"), **more)
    return build_options(Path("train.py"), argv, sources)


NAMED = {"hosts": read_hosts("a:4,b:2")}
TASKS = {"workers": ("SLURM_NTASKS of Slurm job 7", 2)}
NODES = {"hosts": ("SLURM_JOB_NODELIST", "a:2,b:2"), **TASKS}


@pytest.mark.parametrize(
    ("sources", "options", "origins"),
    [
        ({}, {}, {}),
        (
            {
                "flags": {"workers": "2"},
                "environ": {"HOLDFAST_WORKERS": "3", "HOLDFAST_SPARES": "3"},
                "table": {"workers": 4, "spares": 4, "seed": 4},
            },
            {"workers": 2, "spares": 3, "seed": 4},
            {"workers": "--workers", "spares": "HOLDFAST_SPARES", "seed": "holdfast.toml"},
        ),
        (
            {
                "flags": {"metrics_file": "k"},
                "environ": {"HOLDFAST_RUN_DIR": "/abs"},
                "table": {"mpiexec": "mpiexec5"},
            },
            {
                **{"metrics_file": Path("/here/k"), "run_dir": Path("/abs")},
                "mpiexec": Path("mpiexec5"),
            },
            {"run_dir": "HOLDFAST_RUN_DIR"},
        ),
        (
            {
                "environ": {"HOLDFAST_SAVE_EVERY": "7"},
                "table": {"spares": 3, "network": "eth1"},
                "command": DOCTOR,
            },
            {"network": "eth1"},
            {"network": "holdfast.toml"},
        ),
        *(
            ({"environ": {"HOLDFAST_SHRINK": text}}, {"shrink": is_on}, {})
            for is_on, words in ((True, "1 yes ON"), (False, "0 no"))
            for text in words.split()
        ),
        ({"flags": {"hosts": "a:4,b:2"}}, {"workers": 6, **NAMED}, {"workers": "slots of --hosts"}),
        (
            {"flags": {"hosts": "a:4,b:2", "spares": 1}},
            {"workers": 5, "spares": 1, **NAMED},
            {"workers": "slots of --hosts"},
        ),
        (
            {"flags": {"hosts": "a:4,b:2", "workers": 3}},
            {"workers": 3, **NAMED},
            {"workers": "--workers"},
        ),
        (
            {"flags": {"hosts": "a:4,b:2"}, "allocation": TASKS},
            {"workers": 6, **NAMED},
            {"workers": "slots of --hosts"},
        ),
        (
            {"allocation": NODES},
            {"workers": 4, "hosts": read_hosts("a:2,b:2")},
            {"workers": "slots of SLURM_JOB_NODELIST"},
        ),
    ],
)
def test_options_are_those_of_the_first_source_that_has_them(
    sources: dict[str, Any], options: dict[str, Any], origins: dict[str, str]
) -> None:
    """Without any they are the defaults, and workers fill the hosts that are named."""
    built = _built(**sources)

    defaults = JobOptions(Path("/here/train.py"), Path("/here/holdfast-train"), argv=("-x",))
    assert built.options == replace(defaults, **options)
    assert origins.items() <= built.origins.items()
    assert bool(built.origins) == bool(sources)


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
def test_home_and_variables_are_replaced_in_paths(
    monkeypatch: pytest.MonkeyPatch, text: str, path: str
) -> None:
    for name, value in {"HOME": "/home/me", "SCRATCH": "/scratch/me", "NAME": "a"}.items():
        monkeypatch.setenv(name, value)

    for given in ({"flags": {"run_dir": text}}, {"environ": {"HOLDFAST_RUN_DIR": text}}):
        assert _built(**given).options.run_dir == Path(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "complaint"),
    [
        ({"flags": {"workers": "many"}}, "^--workers: 'many' is not a valid integer$"),
        ({"flags": {"workers": "0"}}, r"-n \(workers\) must be at least 1, got 0"),
        ({"environ": {"HOLDFAST_SEED": "1.5"}}, "^HOLDFAST_SEED: '1.5' is not a valid integer$"),
        ({"environ": {"HOLDFAST_FRESH": "perhaps"}}, "'perhaps' is neither yes nor no"),
        (
            {"environ": {"HOLDFAST_SAVE_EVERY": "often"}},
            "^HOLDFAST_SAVE_EVERY: 'often' is not a valid time to save",
        ),
        *(
            ({"table": {name: value}}, f"^holdfast.toml {name.replace('_', '-')}{complaint}")
            for name, value, complaint in (
                ("spares", "x", ": 'x' is not a valid integer$"),
                ("workers", True, ": True is not a valid integer$"),
                ("workers", 0, " must be at least 1, got 0$"),
                ("heartbeat_timeout", [1], r": \[1\] is not a time; give seconds"),
                ("inject", [7], r": \[7\] is not a list of words"),
                ("save_every", ["x"], r": \['x'\] is not a text"),
                ("save_every", "10mn", ": '10mn' is not a valid time"),
                ("run_dir", 7, ": 7 is not a path"),
                ("run_dir", "$NOWHERE/x", r": '\$NOWHERE/x' names a variable that is not there"),
                ("run_dir", "x/${NOWHERE}", r": 'x/.*' names a variable that is not there"),
                ("run_dir", "~nobody-here/x", ": '~nobody-here/x' names a home that is not there"),
            )
        ),
        (
            {"allocation": {"workers": ("SLURM_NTASKS of Slurm job 7", 0)}},
            "^SLURM_NTASKS of Slurm job 7 must be at least 1, got 0$",
        ),
        *(
            (
                {"flags": {"hosts": "a:2,b:2", "workers": workers, "spares": spares}},
                f"^{words}, and the hosts a:2,b:2 have 4; ask for fewer workers, or name more ",
            )
            for workers, spares, words in (
                ("4", "1", "-n 4 with --spares 1 needs 5 slots"),
                ("6", "0", "-n 6 needs 6 slots"),
            )
        ),
    ],
)
def test_value_that_makes_no_sense_is_refused_with_its_source(
    sources: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        _built(**sources)


def test_shown_options_are_a_file_that_says_the_same() -> None:
    built = _built(
        {"workers": "3", "shrink": False},
        {
            **{"HOLDFAST_SAVE_EVERY": "10min", "HOLDFAST_PRELOAD": "numpy,h5py"},
            "HOLDFAST_INJECT": "kill worker=2 step=30;stop worker=1 step=9",
        },
        {"metrics_file": "k"},
    )

    text = "\n".join(built.lines())
    table = {key.replace("-", "_"): value for key, value in tomllib.loads(text)["run"].items()}
    again = _built(table=table)

    assert again.options == built.options
    assert built.options.faults == ("kill worker=2 step=30", "stop worker=1 step=9")
    assert 'save-every = "10min"  # HOLDFAST_SAVE_EVERY' in text
    assert "shrink = false  # --no-shrink" in text
    assert 'metrics-file = "/here/k"  # holdfast.toml' in text
    assert "max-restarts = 3  # default" in text
    assert "# threads is not set: cores / N  (default)" in text


@pytest.mark.parametrize("name", ["a\U0001f600b", "é", 'a"b', "a\\b", "a\tb", "a\x7fb"])
def test_any_name_is_shown_as_toml(name: str) -> None:
    text = "\n".join(_built({"run_dir": name}).lines())

    assert tomllib.loads(text)["run"]["run-dir"] == f"/here/{name}"
    assert text.isascii()


def test_argument_of_several_lines_sets_no_option() -> None:
    built = _built(argv=("x\nstrict = true",))

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
