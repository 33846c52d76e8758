"""Every value that travels between processes, or lies in a file of JSON, comes back as it was.

This is the one list of them.  A new value has a line here, and needs no test of its own for that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.signature import KeyFile
from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.codec import decode, encode

_COUNTS = st.integers(1, 1000)
_SECONDS = st.floats(0.001, 1e9)
_PATHS = st.text(min_size=1).map(Path)


def _or_none(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_OPTIONS = st.builds(
    JobOptions,
    script=_PATHS,
    run_dir=st.just(Path("/runs/one")),
    argv=st.lists(st.text()).map(tuple),
    workers=_COUNTS,
    spares=_COUNTS,
    microbatches=_or_none(_COUNTS),
    threads=_or_none(_COUNTS),
    seed=_or_none(st.integers(0, 1 << 70)),
    initial=_or_none(_PATHS),
    save_every=_or_none(st.sampled_from(["100", "10min", "epoch", "auto"])),
    keep_space=_or_none(st.sampled_from(["1.5 TiB", "20%"])),
    snapshot_memory=_or_none(st.just("8GiB")),
    scrub_every_s=_SECONDS,
    local_dir=_or_none(st.just(Path("/local"))),
    drain_every=st.sampled_from(["4", "10min"]),
    heartbeat_timeout_s=_SECONDS,
    stall_timeout_s=_or_none(_SECONDS),
    requeue=st.booleans(),
    shrink=st.booleans(),
    preload=st.lists(st.text()).map(tuple),
    faults=st.sampled_from([(), ("kill worker=2 step=30 site=reduce", "stop worker=1 step=9")]),
)
_CONFIGS = st.builds(
    replace,
    st.just(worker_config()),
    options=_OPTIONS,
    generation=st.integers(0, (1 << 63) - 1),
    workers=st.sets(st.integers(0, 1 << 30).map(WorkerId)).map(tuple),
    key_file=_or_none(st.from_type(KeyFile)),
    history=st.builds(FailureHistory, _SECONDS),
    lease_token=st.text(),
)
VALUES: dict[type, st.SearchStrategy[Any]] = {
    JobOptions: _OPTIONS,
    WorkerConfig: _CONFIGS,
}
"""The types, and what of them makes sense."""


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: str(kind.__name__))
@given(data=st.data())
def test_value_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])

    assert decode(kind, encode(value)) == value
