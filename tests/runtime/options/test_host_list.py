"""Hosts and slots, as an option and the hostfiles of other tools name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.option import read_hostfile, read_hosts
from holdfast.runtime.options.sources import BuiltOptions, Sources, build_options


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
    ],
    ids=["Open MPI", "Horovod", "PBS", "comments", "max_slots", "head alone"],
)
def test_hostfiles_of_other_tools_are_read(hostfile: Path, text: str, hosts: str) -> None:
    hostfile.write_text(text)

    assert in_words(read_hostfile(hostfile)) == hosts


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("node1\nnode2 slots=many\n", "hosts.txt:2: 'node2 slots=many' is no host with its slots"),
        ("node1 cpus=4", "hosts.txt:1: 'node1 cpus=4' is no host with its slots, such as"),
        ("^node1", "hosts.txt:1: '^node1' is no host with its number of workers, such as node1:4"),
        ("# none\n", "hosts.txt names no host; write one a line, such as `node1 slots=4`"),
    ],
    ids=["no number", "other key", "relative", "empty"],
)
def test_line_that_is_no_host_is_named(hostfile: Path, text: str, complaint: str) -> None:
    hostfile.write_text(text)

    with pytest.raises(ValueError, match=r"hosts\.txt") as caught:
        read_hostfile(hostfile)

    assert complaint in str(caught.value)


def test_host_that_is_named_twice_in_an_option_is_refused() -> None:
    with pytest.raises(ValueError, match="a stands there 2 times; name it once"):
        read_hosts("a:1,b,a:2")


def built(directory: Path, *flags: tuple[str, Any], **environ: str) -> BuiltOptions:
    sources = Sources(dict(flags), environ, {"hosts": ["c:3"]}, directory)
    return build_options(Path("train.py"), (), sources)


def test_hostfile_names_the_hosts_of_the_job(hostfile: Path) -> None:
    found = built(hostfile.parent, ("hostfile", Path("hosts.txt")))

    assert (in_words(found.options.hosts), found.options.workers) == ("node1:2", 2)
    assert found.options.hostfile == hostfile
    assert (found.origins["hosts"], found.origins["workers"]) == (
        *("--hostfile", "slots of --hostfile"),
    )


def test_hosts_of_a_source_that_comes_first_count(hostfile: Path) -> None:
    found = built(hostfile.parent, ("hosts", "a:4"), HOLDFAST_HOSTFILE="hosts.txt")

    assert (in_words(found.options.hosts), found.options.hostfile) == ("a:4", None)


def test_hosts_and_hostfile_of_one_source_are_refused(hostfile: Path) -> None:
    with pytest.raises(UsageError, match="--hosts and --hostfile both name hosts; leave out one"):
        built(hostfile.parent, ("hosts", "a:4"), ("hostfile", Path("hosts.txt")))


def test_hostfile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"HOLDFAST_HOSTFILE: .*hosts\.txt cannot be read"):
        built(tmp_path, HOLDFAST_HOSTFILE="hosts.txt")
