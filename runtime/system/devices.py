"""The accelerators of this host, and the one that each worker takes, without any library.

The driver of NVIDIA has a file for each device that this process may open, that of AMD a folder.
A batch system, or the user, leaves some of them visible by a variable (CUDA C++ Programming
Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques").  A library
reads the variable once, when it looks for devices first.  So a worker that names its own device
there, before MPI and the script, has that device alone, under any library.

TensorFlow takes all memory of a device at once, unless a variable says otherwise.  Workers that
share a device could not both have that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NVIDIA, _AMD = ("CUDA_VISIBLE_DEVICES",), ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
VISIBLE = (*_NVIDIA, *_AMD)
"""Variables that belong to a host, and mean nothing on another one."""

_GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that processes of this one may use.

    Attributes:
        variable: what names those that a process sees, "" if there are none.
        names: how the variable names each.
        kinds: the models, without repeats; none if the driver does not tell.
    """

    variable: str = ""
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def variables(self, place: int) -> dict[str, str]:
        """Return what gives a process the device at its place; they go round if they are few."""
        if not self.names:
            return {}
        return {self.variable: self.names[place % len(self.names)], **_GROWTH}

    def __str__(self) -> str:
        """Their kinds, and how they are named."""
        kinds = f"{', '.join(self.kinds)}, " if self.kinds else ""
        return f"{kinds}{self.variable}={','.join(self.names)}"


def find_devices(environment: Mapping[str, str], root: Path = _ROOT) -> Devices:
    """Return the devices of this host that are visible under an environment.

    It costs two looks for a file where there is none.
    """
    for driver, look, variables in (
        ("dev/nvidiactl", _nvidia, _NVIDIA),
        ("dev/kfd", _amd, _AMD),
    ):
        if (root / driver).exists():
            count, kinds = look(root)
            given = next((name for name in variables if name in environment), None)
            names = tuple(map(str, range(count))) if given is None else _visible(environment[given])
            if names:
                return Devices(given or variables[0], names, tuple(sorted(set(kinds))))
    return Devices()


def _visible(value: str) -> tuple[str, ...]:
    """Return the names in a variable; as the drivers do, up to the first that can be none."""
    names = [name.strip() for name in value.split(",")]
    wrong = (n for n, name in enumerate(names) if not name or name.startswith(("-", "No")))
    return tuple(names[: next(wrong, len(names))])


def _nvidia(root: Path) -> tuple[int, list[str]]:
    """Return the number of devices, and the model of each; none if the driver does not tell."""
    numbers = (path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia[0-9]*"))
    count = sum(number.isdecimal() for number in numbers)  # the driver counts those it may open
    with contextlib.suppress(OSError, ValueError):
        found = (root / "proc/driver/nvidia/gpus").glob("*/information")
        lines = [line for path in found for line in path.read_text().splitlines()]
        return count, [
            line.partition(":")[2].strip() for line in lines if line.startswith("Model:")
        ]
    return count, []


def _amd(root: Path) -> tuple[int, list[str]]:
    """Return the same by the nodes of ROCm's topology that compute; processors are nodes, too."""
    with contextlib.suppress(OSError, ValueError):
        files = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
        nodes = [dict(line.split() for line in path.read_text().splitlines()) for path in files]
        computing = [node for node in nodes if node.get("simd_count", "0") != "0"]
        kinds = [f"gfx target {node.get('gfx_target_version', '?')}" for node in computing]
        return len(kinds), kinds
    return 0, []


def take_device(place: int) -> None:
    """Let this process see one device of its host alone, by its place among the workers there."""
    os.environ.update(find_devices(os.environ).variables(place))
