"""What a job's bits depend on, written down and compared."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.runtime.run import numerics
from holdfast.runtime.run.numerics import Numerics, cpu_flags, differences, instruction_set
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.devices import Devices

BEGAN = Numerics(
    threads=1,
    deterministic=True,
    onednn=True,
    instruction_set="AVX2",
    python="3.11.7",
    numpy="2.4.6",
    tensorflow="2.21.0",
    keras="3.15.1",
    holdfast="0.1.0",
)
AVX512 = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq")


def test_every_field_is_compared() -> None:
    fields = to_plain(BEGAN)
    assert differences(fields, dict(fields)) == ()

    for name, value in fields.items():
        other = not value if isinstance(value, bool) else f"{value}9"
        (sentence,) = differences(fields, {**fields, name: other})
        assert sentence == f"{name.replace('_', ' ')} is {other}, but the run began with {value}"
    (sentence,) = differences(fields, fields | {"tensorflow": ""})
    assert sentence == "tensorflow is not installed, but the run began with 2.21.0"


@pytest.mark.parametrize(
    ("threads", "names", "deterministic"), [(1, (), False), (2, (), True), (1, ("0",), True)]
)
def test_several_threads_and_devices_need_deterministic_operations(
    monkeypatch: pytest.MonkeyPatch, threads: int, names: tuple[str, ...], *, deterministic: bool
) -> None:
    monkeypatch.setattr(numerics, "find_devices", lambda _: Devices("V", names))

    assert Numerics.here(threads=threads).deterministic is deterministic


@pytest.mark.parametrize(
    ("change", "odd"),
    [
        ({"threads": "1"}, "threads"),
        ({"threads": True}, "threads"),
        ({"deterministic": 1}, "deterministic"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_strange_fields_are_refused_by_name(change: dict[str, object], odd: str) -> None:
    fields = to_plain(BEGAN)
    with pytest.raises(ValueError, match=odd):
        Numerics.from_json(fields | change)
    if odd in fields:
        with pytest.raises(ValueError, match=odd):
            Numerics.from_json({name: fields[name] for name in fields if name != odd})


def test_versions_are_found_without_importing_and_onednn_is_on_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("tensorflow", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)

    assert Numerics.here(threads=2).onednn
    for value, is_on in (("0", False), ("False", False), ("1", True)):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", value)
        assert Numerics.here(threads=2).onednn is is_on
    assert Numerics.here(threads=2).numpy
    assert {"tensorflow", "keras"}.isdisjoint(sys.modules)


@pytest.mark.parametrize(
    ("limit", "flags", "expected"),
    [
        ("", AVX512, "AVX512_CORE"),
        ("DEFAULT", AVX512, "AVX512_CORE"),
        ("all", (*AVX512, "avx512_vnni"), "AVX512_CORE_VNNI"),
        ("AVX2", AVX512, "AVX2"),
        ("avx512_core_amx", ("sse4_1", "avx", "avx2"), "AVX2"),
        ("AVX10_9", AVX512, "AVX10_9"),
    ],
)
def test_instruction_set_is_the_best_within_the_limit(
    limit: str, flags: tuple[str, ...], expected: str
) -> None:
    assert instruction_set({"ONEDNN_MAX_CPU_ISA": limit}, flags) == expected


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("flags\t\t: fpu sse4_1 ssse3 avx512f md_clear hypervisor", {"sse4_1", "ssse3", "avx512f"}),
        ("Features\t: fp asimd sve bf16", {"fp", "asimd", "sve", "bf16"}),
        ("isa\t\t: rv64imafdcv", {"rv64imafdcv"}),
        ("cpu\t\t: POWER9, altivec supported", {"POWER9,", "altivec", "supported"}),
        ("model name\t: Xeon", set()),
    ],
    ids=["x86", "ARM", "RISC-V", "POWER", "unknown"],
)
def test_flags_are_those_by_which_kernels_are_chosen(
    tmp_path: Path, line: str, flags: set[str]
) -> None:
    assert cpu_flags(tmp_path / "cpuinfo") == frozenset()
    (tmp_path / "cpuinfo").write_text(
        f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line.partition(':')[0]}: fpu\n"
    )

    assert cpu_flags(tmp_path / "cpuinfo") == flags


def test_processors_without_a_name_for_their_instructions_are_told_by_their_flags() -> None:
    one, other = (instruction_set({}, flags) for flags in (["fp", "asimd"], ["fp", "asimd", "sve"]))

    assert one.split()[1:] == ["asimd", "fp"]
    assert other != one
