"""The settings that the bits of a step depend on, besides seed and data.

TensorFlow's sums change their last bits with the number of threads, the instruction set
and the library's version.  So these are fixed and recorded when a job begins, and compared
whenever a worker joins or a job resumes.
Libraries are asked for their versions without importing them.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.system.codec import WrongValue, from_plain
from holdfast.runtime.system.devices import find_devices

_LIBRARIES = {
    "numpy": ("numpy",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly"),
    "keras": ("keras", "keras-nightly"),
    "holdfast": ("holdfast-mpi",),
}
"""Distributions that may provide a library; the first one installed counts."""

_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")

_INSTRUCTION_SETS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("AVX512_CORE_AMX_FP16", (*_AVX512, "amx_tile", "amx_int8", "amx_bf16", "amx_fp16")),
    ("AVX512_CORE_AMX", (*_AVX512, "amx_tile", "amx_int8", "amx_bf16", "avx512_fp16")),
    ("AVX512_CORE_FP16", (*_AVX512, "avx512_fp16", "avx512_bf16")),
    ("AVX512_CORE_BF16", (*_AVX512, "avx512_bf16", "avx512_vnni")),
    ("AVX512_CORE_VNNI", (*_AVX512, "avx512_vnni")),
    ("AVX512_CORE", _AVX512),
    ("AVX2_VNNI", ("avx2", "avx_vnni")),
    ("AVX2", ("avx2",)),
    ("AVX", ("avx",)),
    ("SSE41", ("sse4_1",)),
)
"""Values of ONEDNN_MAX_CPU_ISA, best first, with the flags of /proc/cpuinfo that they need
(oneDNN developer guide, "CPU dispatcher control")."""


_WITHOUT_XLA, _WITH_XLA = "off", "products"
"""How a compiled update makes means of sums; once, when this was `on`, by a division."""

CPUINFO = Path("/proc/cpuinfo")
_FLAGS = ("Features", "features", "isa", "cpu")
"""The names of a processor's flags on ARM, s390, RISC-V and POWER."""
_COMPUTES = re.compile(r"avx|amx|sse|ssse|fma|f16c|xop|bmi|abm|popcnt|pni")
"""How those flags of x86 begin by which libraries choose their kernels."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """One job's numerics; two workers with equal numerics compute equal bits.

    The shape of a microbatch counts too, but belongs to the identity of a job: no run can
    be resumed with another one.  ``tensorflow`` and ``keras`` are empty if they are not
    installed.
    """

    threads: int
    deterministic: bool
    onednn: bool
    instruction_set: str
    python: str
    numpy: str
    tensorflow: str
    keras: str
    holdfast: str
    xla: str = _WITHOUT_XLA
    """Whether XLA compiles the optimizer's update, if it can, and with which flags.  Runs of an
    older holdfast began without."""

    @staticmethod
    def here(*, threads: int, xla: bool = True) -> Numerics:
        """Return the numerics of a worker of this process's host and environment.

        Op determinism costs time, and is on only if several threads share an operation, or a
        device has many of them.  XLA compiles no update on a device.
        """
        versions = {library: _version(names) for library, names in _LIBRARIES.items()}
        has_devices = bool(find_devices(os.environ).names)
        is_compiled = xla and not has_devices
        with_xla = f"{_WITH_XLA} {os.environ.get('XLA_FLAGS', '')}"
        return Numerics(
            threads=threads,
            deterministic=threads > 1 or has_devices,
            xla=with_xla.rstrip() if is_compiled else _WITHOUT_XLA,
            onednn=os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1").lower() not in ("0", "false"),
            instruction_set=instruction_set(os.environ, cpu_flags()),
            python=platform.python_version(),
            **versions,
        )

    @staticmethod
    def of_run(began: Mapping[str, object], *, threads: int) -> Numerics:
        """Return the numerics here of a run that ``began`` so: with or without XLA, as it did."""
        xla = began.get("xla", _WITHOUT_XLA) != _WITHOUT_XLA
        return Numerics.here(threads=threads, xla=xla)

    @property
    def uses_xla(self) -> bool:
        """Whether XLA compiles the optimizer's update, if it can."""
        return self.xla != _WITHOUT_XLA

    @staticmethod
    def from_json(fields: Mapping[str, object]) -> Numerics:
        """Return the numerics of a record, or of another worker.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        try:
            return from_plain(Numerics, fields)
        except WrongValue as error:
            raise ValueError(
                f"the job's numerics have missing, unknown or mistyped fields {[error.field]}: "
                "they were written by another version of holdfast; resume with that one"
            ) from error


def differing(
    one: Mapping[str, object], other: Mapping[str, object], *, only_common: bool = False
) -> Iterator[str]:
    """Yield the name of each fact in which two differ; those that only one has come last."""
    common = [name for name in one if name in other]
    lone = [] if only_common else [name for name in (*one, *other) if name not in common]
    yield from (name for name in (*common, *lone) if one.get(name) != other.get(name))


def differences(
    began: Mapping[str, object], now: Mapping[str, object], origin: str = "the run began with"
) -> tuple[str, ...]:
    """Return one sentence for each field of the numerics ``now`` that differs from ``began``.

    ``origin`` says, in words, whose ``began`` is.
    """
    return tuple(
        f"{name.replace('_', ' ')} is {_shown(now.get(name))}, but {origin} "
        f"{_shown(began.get(name))}"
        for name in differing(began, now)
    )


def refuse_differences(subject: str, found: tuple[str, ...]) -> None:
    """Raise ``UsageError`` if there are differences: the job is strict about them."""
    if found:
        raise UsageError(
            f"{subject}: {'; '.join(found)}; make them the same, or run without --strict"
        )


def instruction_set(environment: Mapping[str, str], flags: Collection[str]) -> str:
    """Return the best instruction set that oneDNN may use, by its name in ONEDNN_MAX_CPU_ISA.

    ``flags`` are those of the processor.  A limit that is not in the table is returned
    unchanged.  For a processor that is not in the table, its machine and all flags are returned.
    """
    limit = environment.get("ONEDNN_MAX_CPU_ISA", "").strip().upper()
    names = [name for name, _ in _INSTRUCTION_SETS]
    if limit not in ("", "ALL", "DEFAULT", *names):
        return limit
    allowed = _INSTRUCTION_SETS[names.index(limit) if limit in names else 0 :]
    usable = (name for name, needed in allowed if set(needed) <= set(flags))
    return next(usable, " ".join((platform.machine(), *sorted(flags))))


def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return what the first processor can compute with; empty if the kernel does not tell."""
    found = cpu_fields(cpuinfo)
    if "flags" in found:  # x86 also lists what its kernel does about it
        return frozenset(filter(_COMPUTES.match, found["flags"].split()))
    return frozenset(next((found[name] for name in _FLAGS if name in found), "").split())


def cpu_fields(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Return what the kernel tells of the first processor, by its names for that."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))  # the first of a name counts
    return {name.strip(): value.strip() for name, _, value in pairs}


@functools.cache  # a script may train often, and an answer takes a millisecond
def _version(names: tuple[str, ...]) -> str:
    """Return the version of the first distribution that is installed, else nothing."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _shown(value: object) -> str:
    return str(value) if value != "" else "not installed"
