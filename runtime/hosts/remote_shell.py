"""How a program is started on another host: the words of a remote shell around its command.

A remote shell is called as ``SHELL HOST COMMAND...``.  ssh and rsh join the words of the command
with spaces, and a shell there splits them again.  srun and ``ip netns exec`` hand them over as they
are.  A command of plain words means the same to both, and ours has nothing else, unless the path
of the interpreter is unusual.  Then the words are quoted for a shell that joins them, as most
scripts around ssh do.

srun takes options of a step from some hundred variables: ``SLURM_LABELIO`` puts a number before
each line of ours, ``SRUN_CPUS_PER_TASK`` leaves a host one core.  Our step is what its command line
says, so srun gets only those that lead it to the cluster and the job.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import UsageError

CONNECTS_WITHIN_S = 10
"""A host that does not answer to ssh in this time is not there."""

_OF_SSH = (
    # What the user's configuration may ask for, and what lets nothing or too much pass.  An older
    # ssh does not know all of it.
    *("-T", "-o", "IgnoreUnknown=*"),
    *("-o", "StdinNull=no"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECTS_WITHIN_S}"),
    # A connection that is shared with others would end with theirs.
    *("-o", "ControlPath=none"),
    # The leases decide when a host is lost, and ssh must not end before them.
    *("-o", "ServerAliveInterval=0"),
)
"""The user's own options stand before these, and ssh takes the first value of each."""

_HAND_OVER = frozenset({"srun", "ip", "nsenter", "sudo", "env", "docker", "podman", "kubectl"})
"""Programs that execute the words of a command as they are; no shell splits them again."""

_OF_SLURM = re.compile(r"SLURM_|SRUN_")
_LEADS_SRUN = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT|SACK_\w+|(WORKING_)?CLUSTERS?|NODE_ALIASES|JOB_?ID|HET_SIZE|"
    r"ACCOUNT|PARTITION|QOS|RESERVATION|WCKEY)"
)
"""Which cluster, which job, and on whose account a step runs that is a job of its own."""

_START = Path(__file__).with_name("start.py")
_AGENT = "holdfast.runtime.hosts.agent"
"""The only program that runs on another host."""

_FOR_PYTHON = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"),
    "LD_LIBRARY_PATH",
)
"""Variables without which Python may not start, or finds no module."""


@dataclass(frozen=True, slots=True)
class RemoteShell:
    """What starts commands on other hosts, by its own words."""

    words: tuple[str, ...]

    @staticmethod
    def of(text: str) -> RemoteShell:
        """Return the shell that ``--rsh`` names.

        Raises:
            UsageError: the text cannot be split into words, or has none.
        """
        try:
            words = tuple(map(os.path.expanduser, map(os.path.expandvars, shlex.split(text))))
        except ValueError as error:
            raise UsageError(f"--rsh {text!r} is no command: {error}") from error
        if not words:
            raise UsageError("--rsh is empty; name a remote shell, such as ssh")
        return RemoteShell(words)

    @property
    def program(self) -> str:
        """The name of its program, without a path."""
        return Path(self.words[0]).name

    @property
    def is_srun(self) -> bool:
        """Whether it starts a step of Slurm, which a TaskProlog of the site may print before."""
        return self.program == "srun"

    def agent_on(self, host: str) -> list[str]:
        """Return the command line that runs the agent of ``host``."""
        return self.command(host, python_there())

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs ``argv`` on ``host``."""
        options = _OF_SSH if self.program == "ssh" else ()
        is_joined = self.program not in _HAND_OVER
        words = [*self.words, *options, host, *(map(shlex.quote, argv) if is_joined else argv)]
        dropped = sorted(filter(_OF_SLURM.match, os.environ)) if self.is_srun else []
        unset = [f"-u{name}" for name in dropped if not _LEADS_SRUN.fullmatch(name)]
        return ["env", *unset, *words] if unset else words


def python_there(
    module: str = _AGENT, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the command that runs a module of holdfast on a host with this very installation.

    The working directory there is nobody's business: modules are not looked for in it.
    """
    known = os.environ if environment is None else environment
    variables = tuple(f"{name}={known[name]}" for name in _FOR_PYTHON if known.get(name))
    before = ("env", *variables) if variables else ()
    return (*before, sys.executable, str(_START), module)
