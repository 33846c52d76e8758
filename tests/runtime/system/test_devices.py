"""The devices of a host, as drivers and batch systems show them, and the one of each worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.runtime.system import devices
from holdfast.runtime.system.devices import Devices, find_devices, take_device

GROWTH = ("TF_FORCE_GPU_ALLOW_GROWTH", "true")
CUDA, ROCR, HIP = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.fixture
def nvidia(tmp_path: Path) -> Path:
    """Return the root of a host with four devices of NVIDIA."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "null"):
        (tmp_path / "dev" / name).touch()
    for number in range(4):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   1\n")
    return tmp_path


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    """Return the root of a host with two devices of AMD, and a processor beside them."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    for number, simds in enumerate((0, 416, 416)):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"simd_count {simds}\ngfx_target_version 90010\n")
    return tmp_path


def test_host_without_a_driver_has_none(tmp_path: Path) -> None:
    found = find_devices({CUDA: "0,1"}, tmp_path)

    assert found == Devices()
    assert found.variables(0) == {}


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, "0 1 2 3"),
        ({CUDA: "2,3"}, "2 3"),
        ({CUDA: "GPU-8932f937, MIG-e91edf3c"}, "GPU-8932f937 MIG-e91edf3c"),
        ({CUDA: "1,-1,2"}, "1"),
        ({CUDA: ""}, ""),
        ({CUDA: "NoDevFiles"}, ""),
        ({ROCR: "0"}, "0 1 2 3"),
    ],
    ids=["all", "of the batch system", "by id", "as the driver reads", "hidden", "Slurm", "of AMD"],
)
def test_devices_of_nvidia_are_those_that_are_visible(
    nvidia: Path, environment: dict[str, str], names: str
) -> None:
    found = find_devices(environment, nvidia)

    assert found.names == tuple(names.split())
    assert found.kinds == (("NVIDIA H100 80GB HBM3",) if names else ())


@pytest.mark.parametrize(
    ("environment", "variable", "names"),
    [({}, ROCR, "0 1"), ({HIP: "1"}, HIP, "1"), ({ROCR: "1,0", HIP: "0"}, ROCR, "1 0")],
    ids=["all", "chosen by the user", "of the batch system"],
)
def test_devices_of_amd_are_those_that_are_visible(
    amd: Path, environment: dict[str, str], variable: str, names: str
) -> None:
    found = find_devices(environment, amd)

    assert (found.variable, found.names) == (variable, tuple(names.split()))
    assert found.kinds == ("gfx target 90010",)


def test_driver_that_tells_no_model_has_devices_all_the_same(nvidia: Path) -> None:
    (nvidia / "proc/driver/nvidia/gpus/0000:00:00.0/information").unlink()
    (nvidia / "proc/driver/nvidia/gpus/0000:00:00.0/information").mkdir()

    assert find_devices({}, nvidia).names == ("0", "1", "2", "3")
    assert str(find_devices({}, nvidia)) == f"{CUDA}=0,1,2,3"


@pytest.mark.parametrize(("place", "name"), [(0, "2"), (1, "5"), (2, "2")])
def test_each_worker_takes_its_own_device_and_only_the_memory_that_it_needs(
    place: int, name: str
) -> None:
    found = Devices(CUDA, ("2", "5"))

    assert found.variables(place) == dict([(CUDA, name), GROWTH])


def test_process_that_has_taken_a_device_sees_no_other_one(
    nvidia: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (CUDA, GROWTH[0]):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    host = find_devices({}, nvidia)
    monkeypatch.setattr(devices, "find_devices", lambda _: host)

    take_device(6)

    assert (os.environ[CUDA], os.environ[GROWTH[0]]) == ("2", "true")
    assert find_devices(os.environ, nvidia).names == ("2",)
