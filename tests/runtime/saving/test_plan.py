"""What saves have in common travels once, and each save by its ticket."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from host_saves import plan_of, state_of

from holdfast.checkpoint.digest import DigestKind
from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.signature import KeyFile
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.runtime.saving.plan import SaveTicket

RUN_DIR = Path("/runs/one")
TICKET = SaveTicket(7, 9, 30, 4, 3, 12.5)


def test_later_save_of_a_run_has_the_larger_age() -> None:
    again = dataclasses.replace(TICKET, attempt=5)
    other_world = dataclasses.replace(TICKET, generation=10, attempt=1, step=20)

    assert TICKET.age < again.age < other_world.age


def test_name_of_the_memory_is_that_of_all_that_its_map_follows_from(tmp_path: Path) -> None:
    key = KeyFile(Path("/key"), "0123")
    other_state = ShardLayout(specs_of({**state_of(0), "d": state_of(0)["c"]}), 2)
    plan = plan_of(RUN_DIR)

    same = [plan_of(tmp_path), plan_of(RUN_DIR, fields={"stage": 1}), plan_of(RUN_DIR, unsound={1})]
    others = [
        plan_of(RUN_DIR, shards=3),
        plan_of(RUN_DIR, key_file=key),
        plan_of(RUN_DIR, layout=other_state),
        plan_of(RUN_DIR, run_id="other"),
    ]

    assert {found.layout_id for found in same} == {plan.layout_id}
    assert len({found.layout_id for found in [plan, *others]}) == 5


def test_plan_of_a_run_with_a_key_has_digests_that_cannot_be_forged() -> None:
    assert plan_of(RUN_DIR).image_map().kind is DigestKind.XXH3_128
    signed = plan_of(RUN_DIR, key_file=KeyFile(Path("/key"), "0123"))
    assert signed.image_map().kind is DigestKind.SHA256


def test_key_that_is_gone_opens_no_store(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, key_file=KeyFile(tmp_path / "key", "0123"))

    with pytest.raises(KeyUnusable, match="cannot be read"):
        plan.open_store()
