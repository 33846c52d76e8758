"""What saves have in common travels once, and each save by its ticket."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from host_saves import plan_of, state_of

from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.runtime.saving.plan import SaveTicket

RUN_DIR = Path("/runs/one")
TICKET = SaveTicket(7, 9, 30, 4, 3, 12.5)


def test_later_save_of_a_run_has_the_larger_age() -> None:
    again = dataclasses.replace(TICKET, attempt=5)
    other_world = dataclasses.replace(TICKET, generation=10, attempt=1, step=20)

    assert TICKET.age < again.age < other_world.age


def test_name_of_the_memory_is_that_of_all_that_its_map_follows_from(tmp_path: Path) -> None:
    other_state = ShardLayout(specs_of({**state_of(0), "d": state_of(0)["c"]}), 2)
    plan = plan_of(RUN_DIR)

    same = [plan_of(tmp_path), plan_of(RUN_DIR, fields={"stage": 1}), plan_of(RUN_DIR, unsound={1})]
    others = [
        plan_of(RUN_DIR, shards=3),
        plan_of(RUN_DIR, layout=other_state),
        plan_of(RUN_DIR, run_id="other"),
    ]

    assert {found.layout_id for found in same} == {plan.layout_id}
    assert len({found.layout_id for found in [plan, *others]}) == 4
