"""Every value that travels between processes, or lies in a file of JSON, comes back as it was.

This is the one list of them.  A new value has a line here, and needs no test of its own for that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from configs import worker_config
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.retention import Best, Retention, Wanted
from holdfast.checkpoint.tensor import DTYPES, ShardLayout, TensorSpec
from holdfast.recovery.saves import SaveTicket
from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.batch_job import Chain, ChainedStart
from holdfast.runtime.host.host_messages import Order
from holdfast.runtime.host.mpi_trial import Death, RankReport, Trial
from holdfast.runtime.hosts.wire import Changes, FromHead, FromHost, HostFacts, Question
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import FaultStruck
from holdfast.runtime.run.journal import RecordedEvent
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.progress import StepReport, WorkerReport
from holdfast.runtime.run.run_directory import FORMAT, RunRecord
from holdfast.runtime.saving.plan import SavePlan, SaveTerms
from holdfast.runtime.system.channel import MessageKinds, to_message
from holdfast.runtime.system.codec import decode, encode, to_plain
from holdfast.runtime.training.consistency import StepRecord
from holdfast.runtime.training.restoring import Trouble

_COUNTS = st.integers(1, 1000)
_SECONDS = st.floats(0.001, 1e9)
_PATHS = st.text(min_size=1).map(Path)


def _or_none(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_ANY_JSON = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    ),
    max_size=3,
)
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
    snapshot_memory=_or_none(st.integers(1, 1 << 40)),
    heartbeat_timeout_s=_SECONDS,
    stall_timeout_s=_or_none(_SECONDS),
    requeue=st.booleans(),
    shrink=st.booleans(),
    preload=st.lists(st.text()).map(tuple),
    faults=st.sampled_from([(), ("kill worker=2 step=30 site=reduce", "stop worker=1 step=9")]),
)
_RECORDS = st.builds(RunRecord, created=_SECONDS, numerics=_ANY_JSON)
_CONFIGS = st.builds(
    replace,
    st.just(worker_config()),
    options=_OPTIONS,
    generation=st.integers(0, (1 << 63) - 1),
    workers=st.sets(st.integers(0, 1 << 30).map(WorkerId)).map(tuple),
    record=_RECORDS,
    history=st.builds(FailureHistory, _SECONDS),
    lease_token=st.text(),
)
_SHAPES = st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
_SPECS = st.dictionaries(st.text(min_size=1), st.tuples(st.sampled_from(DTYPES), _SHAPES)).map(
    lambda found: tuple(TensorSpec(name, *found[name]) for name in sorted(found))
)
_WANTED = st.builds(Wanted, best=_or_none(st.builds(Best, st.text())), until=_or_none(_COUNTS))
_TERMS = st.builds(
    SaveTerms,
    st.builds(Retention, wanted=st.lists(_WANTED).map(tuple)),
    fields=_ANY_JSON,
    numerics=_ANY_JSON,
)
_PLANS = st.builds(SavePlan, _CONFIGS, st.builds(ShardLayout, _SPECS, _COUNTS), _TERMS)
_OWN_TYPES: dict[type, st.SearchStrategy[Any]] = {
    WorkerConfig: _CONFIGS,
    float: st.floats(allow_nan=False),
    Path: _PATHS,
    RecordedEvent: st.builds(RecordedEvent, fields=_ANY_JSON),
    Changes: st.builds(Changes, _COUNTS, _COUNTS, st.just({"step": 3, "spent": [1, 2]})),
}
for _own, _values in _OWN_TYPES.items():
    st.register_type_strategy(_own, _values)
_METRICS = st.dictionaries(st.text(), st.floats(allow_nan=False))
_NUMBERS = ("step", "steps", "epoch", "epochs", "step_of_epoch", "steps_per_epoch")
_REPORTS = st.builds(
    StepReport,
    now=_SECONDS,
    metrics=_METRICS,
    next_save_at=_or_none(_SECONDS),
    **dict.fromkeys(_NUMBERS, _COUNTS),
)
_WORKERS = st.builds(WorkerReport, silent_s=_or_none(_SECONDS), standing_s=_or_none(_SECONDS))

VALUES: dict[type, st.SearchStrategy[Any]] = {
    JobOptions: _OPTIONS,
    WorkerConfig: _CONFIGS,
    SavePlan: _PLANS,
    SaveTicket: st.builds(SaveTicket),
    StepReport: _REPORTS,
    WorkerReport: _WORKERS,
    Numerics: st.builds(Numerics),
    RunRecord: _RECORDS,
    Question: st.builds(Question, _PATHS, _or_none(_PATHS), _PATHS, mpiexec=_PATHS),
    HostFacts: st.builds(HostFacts, clock=_SECONDS),
    Chain: st.builds(Chain, incarnations=st.lists(st.builds(ChainedStart)).map(tuple)),
    StepRecord: st.builds(StepRecord, parts=st.dictionaries(st.text(), st.text())),
    Trial: st.builds(Trial, deaths=st.lists(st.builds(Death, delay_ms=_SECONDS)).map(tuple)),
    RankReport: st.builds(RankReport),
    Trouble: st.builds(Trouble, seconds=_SECONDS),
}
"""The types, and what of them makes sense."""


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: str(kind.__name__))
@given(data=st.data())
def test_value_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])

    assert decode(kind, encode(value)) == value


_NO_MESSAGE = {FaultStruck}
"""It goes to the journal only."""


def _messages(kinds: Any) -> list[type]:
    found = [each for kind in get_args(kinds) for each in kind.__subclasses__() or (kind,)]
    return [kind for kind in found if kind not in _NO_MESSAGE]


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [(kind, kinds) for kinds in (FromHost, FromHead, Order) for kind in _messages(kinds)],
    ids=lambda kind: getattr(kind, "__name__", ""),
)
@given(data=st.data())
def test_message_comes_back_as_it_was(kind: type, kinds: Any, data: st.DataObject) -> None:
    message = data.draw(st.builds(kind))

    travelled = json.loads(json.dumps(to_message(message)))

    assert MessageKinds[Any](kinds).decode(travelled) == message


NUMERICS = Numerics(2, True, False, "AVX2", "3.11.7", "2.4", "2.21.0", "3.12", "0.2")
RECORD = RunRecord("0123456789abcdef", FORMAT, 5, 4, 0, 2, to_plain(NUMERICS), "ab", ["-n", "é"])
RUN_JSON = """{
  "run_id": "0123456789abcdef",
  "format": 1,
  "created": 5,
  "microbatches": 4,
  "seed": 0,
  "threads": 2,
  "numerics": {
    "threads": 2,
    "deterministic": true,
    "onednn": false,
    "instruction_set": "AVX2",
    "python": "3.11.7",
    "numpy": "2.4",
    "tensorflow": "2.21.0",
    "keras": "3.12",
    "holdfast": "0.2",
    "xla": "off"
  },
  "script_sha256": "ab",
  "argv": [
    "-n",
    "\\u00e9"
  ]
}
"""
CHAIN = Chain("slurm 7", "r", (ChainedStart("job 1", 3),))
CHAIN_JSON = """{
 "name": "slurm 7",
 "run_id": "r",
 "incarnations": [
  {
   "label": "job 1",
   "step": 3
  }
 ]
}"""
STEP_RECORD = StepRecord("m", "s", "j", "o", {"p": "q"}, {"rate": "0.1"}, "b")
STEP_JSON = (
    '{"made by": "m", "script": "s", "job": "j", "operations": "o", "parts": {"p": "q"}, '
    '"asked": {"rate": "0.1"}, "begin": "b"}'
)


def test_files_keep_their_bytes() -> None:
    """Other releases of holdfast read them."""
    assert RECORD.encode().decode() == RUN_JSON
    assert RunRecord.decode(RUN_JSON.encode()) == RECORD
    assert json.dumps(to_plain(CHAIN), indent=1) == CHAIN_JSON
    assert json.dumps(to_plain(STEP_RECORD)) == STEP_JSON
