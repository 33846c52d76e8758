"""Options: how a value is read and checked, how it is named, and what a worker is told of all."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import (
    option,
    pair_of,
    read_bytes,
    read_duration,
    read_hostfile,
    read_hosts,
    read_mca,
    read_switch,
    read_whole_number,
    read_words,
)
from holdfast.runtime.options.sources import Sources, build_options
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.codec import from_plain, to_plain


@pytest.mark.parametrize(
    ("read", "written", "refused", "complaint"),
    [
        (
            read_duration,
            [
                ("90", 90.0), (90, 90.0), (1.5, 1.5), ("1e2", 100.0), ("never", 0.0),
                ("90s", 90.0), ("500ms", 0.5), ("15min", 900.0), ("1.5 h", 5400.0),
                ("2d", 172_800.0), ("1:30", 90.0), ("2:00:00", 7200.0), ("1-12:00:00", 129_600.0),
            ],
            ["", "soon", "5 parsecs", "1:2:3:4", "nan", "inf", True, None],
            "is not a time; give seconds",
        ),
        (
            read_bytes,
            [("200GB", 2 * 10**11), ("1TiB", 2**40), (" 1.5 gib ", 3 << 29), ("512", 512), (4, 4)],
            ["20%", "many", "-1GB", "0", "1 XB", True, 1.5e30],
            "is not a number of bytes, such as 8GiB",
        ),
        (read_switch, [(True, 1), (False, 0)], ["", "maybe", 2, None], "is neither yes nor no"),
        (
            read_whole_number,
            [("7", 7), (7, 7), (7.0, 7), (" 7 ", 7), ("-3", -3)],
            ["many", 7.5, True, None],
            "is not a valid integer",
        ),
        (
            read_words(","),
            [
                ("a, b,,  c ,", ("a", "b", "c")), (["a", " b ", ""], ("a", "b")),
                (("a",), ("a",)), ("", ()), ("kill worker=1 step=2", ("kill worker=1 step=2",)),
            ],
            [[7], 7, None],
            "is not a list of words",
        ),
    ],
    ids=["time", "bytes", "switch", "whole number", "words"],
)  # fmt: skip
def test_value_is_read_as_people_and_toml_write_it_and_others_are_refused(
    read: Any, written: list[tuple[object, object]], refused: list[object], complaint: str
) -> None:
    assert [read(value) for value, _ in written] == [found for _, found in written]
    for value in refused:
        with pytest.raises(ValueError, match=complaint):
            read(value)


def test_option_without_a_name_for_its_value_is_no_switch_by_oversight() -> None:
    with pytest.raises(TypeError, match="--greet: an option has a metavar if it takes a value"):
        option("--greet", "What to say at the start.", None)
    with pytest.raises(TypeError, match="and only then"):
        option("--loud", "Whether to say it loudly.", False, read=read_switch, metavar="YES")


def in_words(hosts: tuple[HostSlots, ...]) -> str:
    return ",".join(map(str, hosts))


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.txt"
    path.write_text("node1 slots=2\n")
    return path


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1 slots=4\nnode2 slots=2\n", "node1:4,node2:2"),
        ("node1:4\nnode2:2", "node1:4,node2:2"),
        ("node1\n\nnode1\nnode2", "node1:2,node2:1"),
        ("# all\n  node1 slots=4  # the first\n#node3\n", "node1:4"),
        ("node1 slots=4 max_slots=8\nnode2 slots=4 max-slots=2", "node1:4,node2:2"),
        ("me@10.0.0.1 slots=0\nnode2", "me@10.0.0.1:0,node2:1"),
        ("node1\nnode2 slots=many\n", "hosts.txt:2: 'node2 slots=many' is no host with its slots"),
        ("node1 cpus=4", "hosts.txt:1: 'node1 cpus=4' is no host with its slots, such as"),
        ("^node1", "hosts.txt:1: '^node1' is no host with its number of workers, such as node1:4"),
        ("# none\n", "hosts.txt names no host; write one a line, such as `node1 slots=4`"),
    ],
    ids=[
        *("Open MPI", "Horovod", "PBS", "comments", "max_slots", "head alone"),
        *("no number", "other key", "relative", "empty"),
    ],
)
def test_hostfiles_of_other_tools_are_read_and_a_line_that_is_no_host_is_named(
    hostfile: Path, text: str, hosts: str
) -> None:
    hostfile.write_text(text)

    if "hosts.txt" not in hosts:
        assert in_words(read_hostfile(hostfile)) == hosts
        return
    with pytest.raises(ValueError, match=re.escape(hosts)):
        read_hostfile(hostfile)


@pytest.mark.parametrize(
    ("flags", "hosts"),
    [
        ({"hostfile": Path("hosts.txt")}, "node1:2 of --hostfile"),
        ({"hosts": "a:4"}, "a:4 of --hosts"),
        ({}, "node1:2 of HOLDFAST_HOSTFILE"),
        (
            {"hosts": "a:4", "hostfile": "hosts.txt"},
            "--hosts and --hostfile both name hosts; leave",
        ),
        ({"hosts": "a:1,b,a:2"}, "--hosts: a stands there 2 times; name it once"),
        ({"hostfile": "none"}, r"--hostfile: .*none cannot be read"),
    ],
)
def test_hosts_are_those_of_the_first_source_that_names_them(
    hostfile: Path, flags: dict[str, Any], hosts: str
) -> None:
    environ = {"HOLDFAST_HOSTFILE": "hosts.txt"}
    sources = Sources(flags, environ, {"hosts": ["c:3"]}, hostfile.parent)

    if " of " not in hosts:
        with pytest.raises(UsageError, match=hosts):
            build_options(Path("train.py"), (), sources)
        return
    found = build_options(Path("train.py"), (), sources)
    assert f"{in_words(found.options.hosts)} of {found.origins['hosts']}" == hosts
    assert found.origins["workers"] == f"slots of {found.origins['hosts']}"
    assert found.options.hostfile == (None if hosts.startswith("a") else hostfile)


def with_settings(*settings: str, **more: Any) -> JobOptions:
    return JobOptions(script=Path("/a/train.py"), run_dir=Path("/runs/a"), mca=settings, **more)


@pytest.mark.parametrize(
    "written",
    [
        (("btl", "self,uct"), ("btl_uct_transports", "rc")),
        ["btl self,uct", "btl_uct_transports  rc"],
        "btl self,uct; btl_uct_transports rc;",
    ],
    ids=["command line", "list of a file", "variable"],
)
def test_settings_are_read_from_wherever_they_stand(written: Any) -> None:
    settings = read_mca(written)

    assert [*map(pair_of, settings)] == [("btl", "self,uct"), ("btl_uct_transports", "rc")]
    assert with_settings(*settings).mca == settings


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("btl", "must be a key and its value, as in \"btl self,uct\", got 'btl'"),
        ("--btl self", "must be a key and its value"),
        ("btl tcp,uct", 'name the transports to use, self among them, as in "self,uct"'),
        ("btl ^sm", "name the transports to use"),
        ("coll ^han", "adapt may return success with wrong sums"),
        ("coll tuned,han", "han may return success with wrong sums"),
        ("mpi_ft_enable 0", "holdfast finds out who is dead"),
        ("mpi_ft_detector 1", "--heartbeat-timeout"),
        ("opal_signal 6,11", "holdfast sets this itself, and a job relies on it; leave it out"),
        ("state_base_recoverable 0", "holdfast sets this itself"),
        ("btl_tcp_if_include eth1", "name it with --network"),
        ("rmaps_base_mapping_policy node", "mpiexec places and binds guards, not workers"),
        ("hwloc_default_binding_policy core", "with taskset or the batch system"),
        ("pml ob1;pml ob1", "pml is given 2 times"),
        ("between hosts: btl self,sm,tcp", "leave sm out, or run on one host"),
        ("between hosts: coll ^han,adapt", 'as in "^han,adapt,sm"'),
        ("between hosts: coll basic,sm", "sm must be left out between hosts"),
    ],
)
def test_setting_that_would_break_a_job_is_refused_with_the_remedy(
    setting: str, words: str
) -> None:
    *between, setting = setting.split(": ")
    if between:
        assert with_settings(setting).mca == (setting,)

    with pytest.raises(UsageError, match=f"^--mca.*{re.escape(words)}"):
        with_settings(*read_mca(setting), hosts=read_hosts("a,b") if between else ())


@pytest.mark.parametrize(
    "setting", ["btl self,uct", "btl self,tcp,ofi", "coll ^han,adapt,sm", "coll basic", "pml ucx"]
)
def test_other_settings_are_left_to_the_trial(setting: str) -> None:
    assert with_settings(setting, hosts=read_hosts("a,b")).mca == (setting,)


OPTIONS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "options.md"


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    script = tmp_path / "train.py"
    script.write_text("")
    return JobOptions(script=script, run_dir=tmp_path / "run", workers=4)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"workers": 0}, r"-n \(workers\) must be at least 1, got 0"),
        ({"microbatches": 0}, "--microbatches must be at least 1, got 0"),
        ({"verify_every": -1}, "--verify-every must be at least 0, got -1"),
        ({"spares": -1}, "--spares must be at least 0, got -1"),
        ({"max_restarts": -2}, "--max-restarts must be at least 0, got -2"),
        ({"threads": 0}, "--threads must be at least 1, got 0"),
        ({"save_every": "0"}, "--save-every: .* at least 1, got 0"),
        ({"save_every": "often"}, "--save-every: 'often' is not a valid time to save: give"),
        ({"seed": -1}, "--seed must be at least 0, got -1"),
        ({"heartbeat_timeout_s": 0.0}, "--heartbeat-timeout must be a positive .* got 0.0"),
        ({"heartbeat_timeout_s": math.nan}, "--heartbeat-timeout must be a positive .* got nan"),
        ({"heartbeat_timeout_s": math.inf}, "--heartbeat-timeout must be a positive .* got inf"),
        ({"shards": 0}, "--shards must be at least 1, got 0"),
        ({"shards": 100_000}, "--shards must be at most 1024, got 100000"),
        ({"scale_rate": "cubic"}, "--scale-lr must be linear or sqrt, got 'cubic'"),
        ({"scale_batch": 0}, "--scale-batch must be at least 1, got 0"),
        ({"grace_s": 0.0}, "--grace must be a positive number of seconds, got 0.0"),
        ({"deadline_s": -1.0}, "--deadline must be a positive number of seconds, got -1.0"),
        ({"stall_timeout_s": -1.0}, "--stall-timeout must be a number of seconds, or 0 or never"),
        ({"wait_lease_s": -1.0}, "--wait-lease must be a time of 0 s or more, got -1.0"),
        ({"faults": ("kill worker=1",)}, "--inject: .*step must be given"),
        ({"faults": ("kill worker=1 step=2",) * 2}, "--inject: .*strike at one address"),
    ],
)
def test_request_that_makes_no_sense_is_refused_with_its_value(
    options: JobOptions, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=f"^{complaint}"):
        dataclasses.replace(options, **change)


@pytest.mark.parametrize("field", dataclasses.fields(JobOptions), ids=lambda field: field.name)
def test_every_field_has_a_flag_a_variable_and_a_line_in_the_docs(field: Any) -> None:
    """Or it says why people do not set it."""
    option = OPTIONS[field.name]
    page = OPTIONS_PAGE.read_text(encoding="utf-8")

    if option.flags:
        assert option.flags[-1].startswith("--")
        assert option.variable == "HOLDFAST_" + option.flags[-1][2:].replace("-", "_").upper()
        assert f"`{option.flags[-1]}" in page
        assert option.help in page
        assert option.commands
    else:
        assert option.help
        assert f"| `{field.name}` | {option.help} |" in page


def test_differences_are_named_with_both_values() -> None:
    own = JobOptions(Path("/a.py"), Path("/run"), workers=2)
    asked = dataclasses.replace(own, workers=4, save_every="10", shrink=False, preload=())

    assert own.differences(own) == ()
    assert own.differences(asked) == (
        "--workers 2, not 4",
        "--save-every left out, not 10",
        "--shrink yes, not no",
        "--preload tensorflow,keras, not left out",
    )


def test_modules_that_the_user_has_named_are_those_beside_the_default(options: JobOptions) -> None:
    assert options.named_modules == ()
    named = dataclasses.replace(options, preload=("keras", "sklearn", "torch"))
    assert named.named_modules == ("sklearn", "torch")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workers": [0, 0]}, r"workers are \(0, 0\)"),
        ({"generation": -1}, "generation is -1"),
        ({"generation": 1 << 63}, f"generation is {1 << 63}"),
        ({"record": {"run_id": 1}}, r"WorkerConfig\.record\.run_id is 1, not a text"),
        ({"more": 1}, r"WorkerConfig\.more is unknown"),
        ({"history": {"luck": 1}}, r"WorkerConfig\.history\.luck is unknown"),
        ({"options": {}}, r"WorkerConfig\.options\.script is missing"),
        ({"options": "text"}, "options is 'text', not an object"),
        ({"workers": ["0"]}, r"WorkerConfig\.workers\[0\] is '0', not a whole number"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused_with_the_reason(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        from_plain(WorkerConfig, to_plain(worker_config()) | change)


def test_option_that_makes_no_sense_is_refused_in_the_words_that_a_user_knows() -> None:
    fields = to_plain(worker_config())

    with pytest.raises(UsageError, match=r"-n \(workers\) must be at least 1, got 0"):
        from_plain(WorkerConfig, fields | {"options": fields["options"] | {"workers": 0}})


@pytest.mark.parametrize(
    ("hosts", "places"), [((), [0, 1, 2, 3]), (("a", "b", "b", "a"), [0, 0, 1, 1])]
)
def test_worker_has_a_place_among_those_of_its_host(
    hosts: tuple[str, ...], places: list[int]
) -> None:
    config = replace(worker_config(workers=(4, 5, 6, 7), worker=4), hosts=hosts)

    found = [replace(config, worker=worker).place_on_host for worker in config.workers]

    assert found == places


def test_script_is_where_its_link_led_when_the_job_began(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").touch()
    link, begun = tmp_path / "current", str(tmp_path / "one/train.py")
    link.symlink_to("two")
    config = worker_config(script=link / "train.py")

    assert config.script == tmp_path / "two/train.py"
    assert replace(config, script_begun=begun).script == tmp_path / "one/train.py"
    (tmp_path / "one").rename(tmp_path / "gone")
    assert replace(config, script_begun=begun).script == tmp_path / "one/train.py"
    elsewhere = replace(config, script_begun=begun, hosts=("a",))
    assert elsewhere.script == tmp_path / "two/train.py"
