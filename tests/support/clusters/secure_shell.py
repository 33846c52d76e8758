"""OpenSSH on the hosts of a test cluster, with keys of their own: ``ssh`` as sites use it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cluster import Cluster

_SERVER = "/usr/sbin/sshd"  # it wants to be called by its whole name
_SERVER_CONFIGURATION = """\
HostKey {at}/host_key
AuthorizedKeysFile {at}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
"""
_CONFIGURATION = """\
User root
IdentityFile {at}/user_key
IdentitiesOnly yes
UserKnownHostsFile {at}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
"""


def why_not() -> str | None:
    """Return the reason why no server can be started here, None if one can."""
    missing = [name for name in (_SERVER, "ssh", "ssh-keygen") if shutil.which(name) is None]
    return f"{', '.join(missing)} is not installed (Debian: openssh-server)" if missing else None


def start_ssh(cluster: Cluster) -> str:
    """Start a server on each host, also after its restart; return the command for ``--rsh``."""
    at = cluster.directory / "ssh"
    at.mkdir()
    for name in ("host_key", "user_key"):
        line = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(at / name)]
        subprocess.run(line, check=True)
    host_key = (at / "host_key.pub").read_text()
    (at / "known_hosts").write_text(f"{','.join(cluster.names)} {host_key}")
    (at / "sshd_config").write_text(_SERVER_CONFIGURATION.format(at=at))
    (at / "config").write_text(_CONFIGURATION.format(at=at))
    cluster.at_start(lambda host: _serve(cluster, host, at))
    return f"ssh -F {at / 'config'}"


def _serve(cluster: Cluster, host: str, at: Path) -> None:
    """Start the server of a host; it takes connections when its first process has ended."""
    cluster.run(host, ["mkdir", "-p", "/run/sshd"])
    line = [_SERVER, "-f", str(at / "sshd_config"), "-E", str(at / f"{host}.log")]
    cluster.run(host, line, env={})
