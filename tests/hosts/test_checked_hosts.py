"""Hosts of a job before its record is made, on hosts with a network of their own."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster
from hpc_page import write_train
from secure_shell import start_ssh
from secure_shell import why_not as why_no_ssh
from workload import EVEN

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

HOLDFAST = (sys.executable, "-c", "from holdfast.runtime.commands.main import main; main()")
CHECK = """
import json, sys
from pathlib import Path
from holdfast.runtime.commands.main import main
from holdfast.runtime.hosts.checked_hosts import check_hosts
from holdfast.runtime.hosts.checked_hosts import settle_hosts
from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import find_mpiexec
from holdfast.runtime.options.option import read_hosts
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory

folder, rsh, network = Path(sys.argv[1]), *sys.argv[2:4]
options = JobOptions(
    folder / "train.py", folder / "run", hosts=read_hosts("a:1,b:2,c:1"), workers=4, rsh=rsh,
    network=network or None,
)
directory = RunDirectory(options.run_dir)
directory.prepare()
proof = directory.lease_path, directory.acquire_lease().token
try:
    hosts, mpiexec = settle_hosts(options), find_mpiexec()
    found = check_hosts(options, Path.cwd(), hosts, mpiexec, proof, lambda _: None)
    print(json.dumps(str(found.network)))
except UsageError as error:
    print(json.dumps(str(error)))
"""
"""The check of a job, as its client makes it once it has the lease."""


@pytest.fixture
def script(cluster: Cluster) -> Path:
    path = cluster.shared / "train.py"
    path.touch()
    return path


def checked(cluster: Cluster, folder: Path, network: str = "", *, rsh: str = "") -> str:
    """Return the network of the hosts, or why they are refused."""
    line = [sys.executable, "-c", CHECK, str(folder), rsh or cluster.rsh, network]
    return str(json.loads(cluster.run("a", line, cwd=cluster.shared).stdout))


def test_hosts_with_addresses_and_no_network_get_the_one_around_them(
    cluster: Cluster, script: Path
) -> None:
    """So it is in clouds, with Calico and in tunnels; a route leads to the other hosts."""
    addresses = [cluster.address(host) for host in cluster.names]
    for host, address in zip(cluster.names, addresses, strict=True):
        cluster.run(host, ["ip", "addr", "flush", "dev", "eth0"])
        cluster.run(host, ["ip", "addr", "add", f"{address}/32", "dev", "eth0"])
        cluster.run(host, ["ip", "route", "add", "10.77.0.0/16", "dev", "eth0"])

    assert checked(cluster, script.parent) == "10.77.0.0/30"


ONE_PACKET_EACH = """
import array, fcntl, socket, struct
for command in (0x1F, 0x24):  # ETHTOOL_STSO, ETHTOOL_SGSO of linux/ethtool.h: off
    value = array.array("I", [command, 0])
    request = struct.pack("16sP16x", b"eth0", value.buffer_info()[0])
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8946, request)
"""


def test_network_that_only_small_packets_pass_is_refused_by_name(
    cluster: Cluster, script: Path
) -> None:
    for host in cluster.names:
        cluster.run(host, [sys.executable, "-c", ONE_PACKET_EACH])
    cluster.narrow("a", 1200)

    assert checked(cluster, script.parent, rsh=cluster.shell_past_the_network()) == (
        "from b to a on 10.77.0.0/24, c to a on 10.77.0.0/24 small packets pass and large ones do "
        "not: give all interfaces on the way one MTU, as by `ip link set eth0 mtu 1400`; or name "
        "another network by --network"
    )


def refused(cluster: Cluster, *argv: str) -> str:
    """Return what `holdfast run` says on the first host, which must refuse the job."""
    line = [*HOLDFAST, "run", "--hosts", "a:1,b:1", "--rsh", cluster.rsh, *argv]
    ended = cluster.run("a", line, cwd=cluster.shared, check=False, stderr=subprocess.PIPE)
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


@pytest.mark.mpi
def test_run_directory_of_one_host_alone_is_refused_and_has_no_record(
    cluster: Cluster, script: Path
) -> None:
    said = refused(cluster, "--run-dir", "/tmp/run", str(script))

    assert said.endswith(
        "holdfast: error: the run directory /tmp/run is not the same on b and a: choose one on a "
        "file system that all hosts share, by --run-dir\n"
    )
    cluster.run("a", ["test", "!", "-e", "/tmp/run/RUN.json"])


@pytest.mark.mpi
def test_folder_over_a_link_of_the_head_is_found_by_its_other_name_and_umask_and_modules_travel(
    cluster: Cluster,
) -> None:
    """As where homes are links on the server of the homes, and the place itself is elsewhere."""
    write_train(cluster.shared)
    cluster.run("a", ["mkdir", "/tmp/disk"])
    cluster.run("a", ["mount", "--bind", str(cluster.shared), "/tmp/disk"])
    cluster.run("a", ["ln", "-s", "/tmp/disk", "/tmp/home"])
    cluster.run("b", ["ln", "-s", str(cluster.shared), "/tmp/home"])
    hosts = ["--hosts", "a:0,b:1", "--rsh", cluster.rsh, "--microbatches", str(EVEN.microbatches)]
    line = ["sh", "-c", 'umask 027; exec "$@"', "-", *HOLDFAST, "run", *hosts, "train.py"]

    ended = cluster.run(
        "a", line, cwd="/tmp/home", env={**os.environ, "PWD": "/tmp/home"}, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert " in /tmp/home/holdfast-train" in ended.stderr
    run_dir = cluster.shared / "holdfast-train"
    steps = [path for path in (run_dir / "checkpoints").iterdir() if path.name.startswith("step")]
    assert steps
    modes = {stat.S_IMODE(path.stat().st_mode) for step in steps for path in step.iterdir()}
    assert modes == {0o640}


@pytest.mark.mpi
def test_processors_of_one_name_with_other_flags_are_refused_by_a_strict_job(
    cluster: Cluster, tmp_path: Path, script: Path
) -> None:
    """As in a cloud; and as on ARM, where the kernel tells no name."""
    real = Path("/proc/cpuinfo").read_text()
    without = re.sub(r" (avx512\w*|amx\w*|fma)", "", real)
    names = re.sub(r"(?m)^model name.*\n", "", real)
    on_arm = re.sub(r"(?m)^flags.*$", "Features\t: fp asimd sve", names)
    for text in (without, on_arm):
        (tmp_path / "cpuinfo").write_text(text)
        cluster.run("b", ["mount", "--bind", str(tmp_path / "cpuinfo"), "/proc/cpuinfo"])

        said = refused(cluster, "--strict", "--run-dir", str(tmp_path / "run"), str(script))

        assert "the hosts of the job differ: a has " in said
        assert "choose their kernels by that, and bits may differ" in said
        cluster.run("b", ["umount", "/proc/cpuinfo"])


@pytest.fixture
def ssh(cluster: Cluster) -> str:
    """Return the command of OpenSSH, with servers on all hosts."""
    reason = why_no_ssh()
    if reason is not None:
        pytest.skip(reason)
    return start_ssh(cluster)


def test_words_of_ssh_are_shown_for_a_host_that_takes_no_key_and_one_that_is_gone(
    cluster: Cluster, script: Path, ssh: str
) -> None:
    (cluster.directory / "ssh" / "user_key.pub").write_text("")
    cluster.kill("c")

    said = checked(cluster, script.parent, rsh=ssh)

    assert said.startswith("b cannot be reached by ssh: root@b: Permission denied (publickey")
    assert f"so `{ssh} -o BatchMode=yes b true` must work. " in said
    assert "c cannot be reached by ssh: ssh: connect to host c port 22: " in said
