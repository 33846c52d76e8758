"""The checks that all do the same: all workers of a world, and a run that goes on.

Every worker runs the whole script, so it may see what the others do not.  Four things are compared:

* *numerics*: a difference is a warning, or an error under ``--strict``;
* *work*: a script may draw its data from an unseeded generator.  It has other data on each worker
  then, and trains on a mixture that no run would give again;
* *run*: it was begun by one model on some samples.  A script with other ones is refused when it
  resumes;
* *step*: a script may take a setting from the pid or the clock.  Then each worker would add
  gradients of another loss, or of another model, and a death would change the result.  Workers
  with other callbacks would not meet to agree on their effects.  Digests are
  compared first.  Only if they differ do the workers tell each other what the step is made of, and
  the first difference is named.  Weights are compared only where they begin a training: a
  checkpoint replaces them.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

from holdfast.checkpoint.digest import digest_of
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.tensor import TensorSpec, specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.model.step_facts import DIGEST, GraphFacts, value_of
from holdfast.runtime.run.entries import record
from holdfast.runtime.run.events import NumericsDiffer
from holdfast.runtime.run.numerics import Numerics, differences, refuse_differences
from holdfast.runtime.system.codec import JSON_NAME, WrongValue, from_plain, to_plain
from holdfast.runtime.training.callback_host import CALLBACKS
from holdfast.runtime.training.job_state import JobState
from holdfast.runtime.training.training_job import FIRST_EPOCH, MICROBATCHES, TrainingJob
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.users_modules import script_digest

_PARTS = {
    "weights": "model",
    "optimizer": "optimizer",
    "companion": "callbacks",
    "cursor": "metrics",
}
"""What the script has, by the first part of the names of its tensors; the first that differs is
told, because the others follow from it."""

_OTHER_PART = "state"
_MOST_TOLD = 3
_WAYS_OUT = "begin a new run with --fresh, or choose another --run-dir"

_MAY_BE_LEFT_OUT = ("shuffle", "steps per epoch", "learning rate")
"""Parts of a job's identity that only some jobs have."""

STEP = "step"
"""The field of a manifest's cursor that holds a `StepRecord`."""

_MEND = (
    "every worker runs the whole script, so all must build the same step: seed every random "
    "generator with a number, and take nothing that acts on training from the clock or the pid"
)
_SAME_LIST = (
    "give all workers the same list: what callbacks write is there once, and a hook of your own "
    "can ask holdfast.is_first()"
)
_CURSOR = "cursor/"
_STEP_PARTS = ("weights/", "optimizer/", "companion/")
_MOST_PARTS = 256
_RATE, _RATE_OF = "learning_rate", "learning rate of "
_SCHEDULER = "LearningRateScheduler"

_Told: TypeAlias = tuple[WorkerId, Any]
"""What a worker has told the others."""


def check_alike(
    context: WorkerContext,
    membership: Membership,
    job: TrainingJob,
    state: JobState,
    cursor: Cursor,
) -> None:
    """Compare numerics, work and step of all workers at once; each by itself if any differs.

    Raises:
        UsageError: the numerics differ and the job is strict; raised on all workers alike.
        ProgramError: the work or the step differs; raised on all workers alike.
        WorldBroken: a member died.
    """
    if membership.communicator.size == 1:
        return
    mine = repr((job.numerics, job.card, *_of_step(state, cursor))).encode()
    if len(set(membership.communicator.allgather_bytes(digest_of(mine).encode()))) > 1:
        check_peers(context, membership, job.numerics)
        check_same_work(membership, job)
        check_same_step(membership, state, cursor)


def check_peers(context: WorkerContext, membership: Membership, mine: Numerics) -> None:
    """Compare the numerics of all workers of the world with those of rank 0.

    Raises:
        UsageError: they differ and the job is strict; raised on all workers alike.
        WorldBroken: a member died.
    """
    (one, first), *others = _told_by_all(membership, to_plain(mine))
    for two, theirs in others:
        subject = f"worker {two} has other numerics than worker {one}"
        found = differences(
            Numerics.from_json(first), Numerics.from_json(theirs), f"worker {one} has"
        )
        _judge(context, subject, found)


def check_resumed(context: WorkerContext, before: Numerics, now: Numerics) -> None:
    """Compare the numerics of a checkpoint with this job's.

    Raises:
        UsageError: they differ and the job is strict.
    """
    subject = f"the numerics of the run in {context.run_dir} have changed"
    _judge(context, subject, differences(before, now, "the checkpoint was made with"))


def _judge(context: WorkerContext, subject: str, found: tuple[str, ...]) -> None:
    if context.config.options.strict:
        refuse_differences(subject, found)
    if found:
        record(context.journal, NumericsDiffer(differences=found))
        context.notify(f"{subject}: {'; '.join(found)}: its bytes may differ")


def check_same_work(membership: Membership, job: TrainingJob) -> None:
    """Compare the job of all workers of the world with that of rank 0.

    Raises:
        ProgramError: they differ; raised on all workers alike.
        WorldBroken: a member died.
    """
    _refuse_first(membership, job.card, _other_work)


def _other_work(name: str, one: _Told, two: _Told) -> str:
    return (
        f"{name} of worker {two[0]} is {two[1]}, and that of worker {one[0]} is {one[1]}: every "
        "worker runs the whole script, so all must see the same; seed every random generator, and "
        "sort lists of files"
    )


def check_same_run(
    context: WorkerContext, job: TrainingJob, specs: Iterable[TensorSpec], saved: Manifest
) -> None:
    """Refuse to go on with a checkpoint of another model, or of other samples.

    Raises:
        UsageError: one sentence tells the difference, and both ways out.
    """
    difference = model_difference(saved.specs, specs)
    if difference is not None:
        raise UsageError(
            f"the run in {context.run_dir} and the script differ in the {difference}; {_WAYS_OUT}"
        )
    first_epoch = {FIRST_EPOCH: job.work_plan.first_epoch}  # older checkpoints do not tell
    _check_identity(context, {**job.identity, **first_epoch}, {**first_epoch, **saved.cursor})
    before, now = saved.cursor.get("data"), job.data_fingerprint
    if before is not None and now is not None and before != now:
        raise UsageError(
            f"the run in {context.run_dir} was begun with other samples (digest {before}, now "
            f"{now}): if they are random, seed every generator of the script; else {_WAYS_OUT}"
        )


def _check_identity(
    context: WorkerContext, mine: Mapping[str, int | str], saved: Mapping[str, object]
) -> None:
    for name in (*mine, *_MAY_BE_LEFT_OUT):
        before, now = saved.get(name), mine.get(name)
        if before != now and name != MICROBATCHES:  # a user may change them
            raise UsageError(
                f"the run in {context.run_dir} was begun with {_said(name, before)}, and the "
                f"script has {_said(name, now)}: go back to that, {_WAYS_OUT}"
            )


def _said(name: str, value: object) -> str:
    if name == "shuffle":
        return f"shuffle={value is None}"
    if name == FIRST_EPOCH:
        return f"initial_epoch={value}"
    return f"no {name}" if value is None else f"{name} {value}"


def model_difference(saved: Iterable[TensorSpec], mine: Iterable[TensorSpec]) -> str | None:
    """Return what a checkpoint and the script's model differ in, None for nothing."""
    then, now = set(saved), set(mine)
    parts = {_part_of(spec) for spec in then ^ now}
    noun = next((noun for noun in (*_PARTS.values(), _OTHER_PART) if noun in parts), None)
    if noun is None:
        return None
    gone, new = ([s for s in specs if _part_of(s) == noun] for specs in (then - now, now - then))
    return f"{noun}: {_sides(_described(gone, new), _described(new, gone))}"


def _part_of(spec: TensorSpec) -> str:
    prefix, slash, _ = spec.name.partition("/")
    return _PARTS.get(prefix, _OTHER_PART) if slash else _OTHER_PART


def _described(specs: Iterable[TensorSpec], others: Iterable[TensorSpec]) -> list[str]:
    """Return tensors in words, kernels before biases; their types if only these differ."""
    shapes = {spec.name: spec.shape for spec in others}
    return [
        f"{_short(spec.name)} {spec.shape}"
        + (f" {spec.dtype}" if shapes.get(spec.name) == spec.shape else "")
        for spec in sorted(specs, key=lambda spec: (len(spec.shape) < 2, spec.name))
    ]


def _short(name: str) -> str:
    prefix, _, rest = name.partition("/")
    return rest if prefix in _PARTS and rest else name


def _sides(gone: Sequence[str], new: Sequence[str]) -> str:
    if not new:
        return f"the checkpoint has {_listed(gone)}, which the script does not have"
    if not gone:
        return f"the script has {_listed(new)}, which the checkpoint does not have"
    return f"the checkpoint has {_listed(gone)}; the script has {_listed(new)}"


def _listed(tensors: Sequence[str]) -> str:
    more = len(tensors) - _MOST_TOLD
    return ", ".join(tensors[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


def check_same_step(membership: Membership, state: JobState, cursor: Cursor) -> None:
    """Compare what the workers of the world have built with what rank 0 has.

    Raises:
        ProgramError: they differ; raised on all workers alike.
        WorldBroken: a member died.
    """
    shapes, settings, digest = _of_step(state, cursor)
    facts = state.facts
    mine = [digest_of(repr(part).encode()) for part in (shapes, settings)]
    everyones = _told_by_all(membership, [*mine, digest])
    if len({(shape, step) for _, (shape, _, step) in everyones}) > 1:
        told = settings if facts is None else {**settings, **facts.settings()}
        rest = {} if facts is None else facts.rest()
        _refuse_first(membership, {**told, **shapes, **rest}, _other_step)
    if len({setting for _, (_, setting, _) in everyones}) > 1:
        _refuse_first(membership, settings, _other_step, only_common=True)


def _of_step(state: JobState, cursor: Cursor) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the shapes of the state, the settings of callbacks, and the digest of the step."""
    facts = state.facts
    settings = dict(state.callback_host.settings())
    return _shapes(state, cursor), settings, "" if facts is None else facts.digest


def _shapes(state: JobState, cursor: Cursor) -> dict[str, str]:
    specs = [spec for spec in specs_of(state.tensors(cursor)) if not spec.name.startswith(_CURSOR)]
    return {
        f"the shape of {spec.name.removeprefix('weights/')}": f"{spec.shape} {spec.dtype}"
        for spec in specs
    }


def check_same_weights(membership: Membership, state: JobState, cursor: Cursor) -> None:
    """Compare the state that a training begins with; a checkpoint would replace it.

    Raises:
        ProgramError: they differ; raised on all workers alike.
        WorldBroken: a member died.
    """
    if membership.communicator.size == 1:
        return
    values = {
        _initial(name): state.made.get(name) or value_of(value)
        for name, value in state.tensors(cursor).items()
        if not name.startswith(_CURSOR)
    }
    everyones = _told_by_all(membership, digest_of(repr(values).encode()))
    if len({digest for _, digest in everyones}) > 1:
        _refuse_first(membership, values, _other_step)


def _initial(name: str) -> str:
    short = next((name.removeprefix(part) for part in _STEP_PARTS if name.startswith(part)), name)
    is_rate = name.startswith("optimizer/") and name.endswith(_RATE)
    return "the learning rate" if is_rate else f"the initial weights of {short}"


def _told_by_all(membership: Membership, mine: Any) -> list[_Told]:
    """Return what all workers give, a JSON value, in rank order."""
    found = membership.communicator.allgather_bytes(json.dumps(mine).encode())
    return list(zip(membership.world.workers, map(json.loads, found), strict=True))


def _refuse_first(
    membership: Membership,
    mine: Mapping[str, object],
    say: Callable[[str, _Told, _Told], str],
    *,
    only_common: bool = False,
) -> None:
    """Name the first fact in which a worker differs; one that only one has comes last."""
    (one, first), *others = _told_by_all(membership, dict(mine))
    for two, theirs in others:
        common = [name for name in first if name in theirs]
        lone = [] if only_common else [name for name in (*first, *theirs) if name not in common]
        for name in (*common, *lone):
            if first.get(name) != theirs.get(name):
                raise ProgramError(say(name, (one, first.get(name)), (two, theirs.get(name))))


def _other_step(name: str, one: _Told, two: _Told) -> str:
    mine, theirs = _shown(one[1], two[1])
    is_told = mine is not None or theirs is not None
    told = f": {mine or 'none'} on worker {one[0]}, {theirs or 'none'} on worker {two[0]}"
    both, mend = f"workers {one[0]} and {two[0]}", _MEND
    differ = f"{both} build different steps, they differ"
    if name == CALLBACKS:
        differ, mend = f"{both} differ", _SAME_LIST
    return f"{differ} in {name}{told if is_told else ''}; {mend}"


def _shown(*values: str | None) -> list[str | None]:
    """Return values for people: digests are none, and numbers are short if they still differ."""
    told = [None if value is None or value.startswith(DIGEST) else value for value in values]
    with contextlib.suppress(TypeError, ValueError):
        short: list[str | None] = [f"{float(str(value)):.6g}" for value in told]
        if len(set(short)) == len(told):
            return short
    return told


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a checkpoint tells of the step that has made it.

    ``made_by`` is all beside the script that a graph depends on.  ``script`` is the digest of the
    script's files and arguments, and ``job`` that of the job, which may have several launches.
    """

    made_by: str = field(metadata={JSON_NAME: "made by"})
    script: str
    job: str
    operations: str
    parts: Mapping[str, str]
    asked: Mapping[str, str] = field(default_factory=dict)
    """What the script has asked for, in words; of rates in variables, when the run was begun."""
    begin: str = ""
    """The digest of the weights that the script has made."""

    @staticmethod
    def of(state: JobState, context: WorkerContext, numerics: object) -> StepRecord:
        """Return the record of a step of which nothing was loaded yet."""
        facts = state.facts
        graphs = GraphFacts() if facts is None else facts.graphs
        asked = {} if facts is None else dict(islice(facts.settings().items(), _MOST_PARTS))
        if _SCHEDULER in state.callback_host.settings().get(CALLBACKS, ""):
            asked[_SCHEDULER] = "given"
        parts = graphs.parts
        if len(parts) > _MOST_PARTS:
            parts = {"the step": digest_of(repr(sorted(parts.items())).encode())}
        config = context.config
        made_by = f"{type(state.replica).__name__} {numerics}"
        return StepRecord(
            digest_of(made_by.encode()),
            script_digest(config.options.argv),
            digest_of(config.lease_token.encode()) if config.lease_token else "",
            graphs.operations,
            parts,
            asked,
            state.begin,
        )

    def going_on_from(self, saved: Mapping[str, object]) -> StepRecord:
        """Return the record for the next checkpoints: rates that are kept stay as they were."""
        before = _record_in(saved)
        if before is None or _SCHEDULER in self.asked:  # a callback sets the rate from here on
            return self
        rates = {name: then for name, then, now in self.unlike(before) if _is_kept(name, then, now)}
        return replace(self, asked={**self.asked, **rates})

    def unlike(self, before: StepRecord) -> list[tuple[str, str, str]]:
        """Return what is asked for in other words than before: its name, and both."""
        pairs = ((name, before.asked.get(name, now), now) for name, now in self.asked.items())
        return [(name, then, now) for name, then, now in pairs if then != now]

    def difference(self, before: StepRecord) -> str | None:
        """Return the part of the step whose constants differ now, None for none.

        Only constants are compared: the operations may follow from the weights of the model,
        and these are others after a relaunch.
        """
        if (self.made_by, self.operations) != (before.made_by, before.operations):
            return None
        names = [*self.parts, *(name for name in before.parts if name not in self.parts)]
        found = (name for name in names if self.parts.get(name) != before.parts.get(name))
        return next(found, None)


def _record_in(saved: Mapping[str, object]) -> StepRecord | None:
    """Return the record of a checkpoint, None if an older holdfast has saved none."""
    try:
        return from_plain(StepRecord, saved.get(STEP), allows_more=True)
    except WrongValue:
        return None


def _is_kept(name: str, *values: str) -> bool:
    """Return whether a setting is a variable, which a checkpoint holds; a schedule is none."""
    with contextlib.suppress(ValueError):
        return name.startswith(_RATE_OF) and all(map(math.isfinite, map(float, values)))
    return False


def _asked_anew(unlike: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield what becomes of each setting that the script asks for in another way now."""
    for name, then, now in unlike:
        if _is_kept(name, then, now):
            yield (
                f"the script asks for the {name} of {now} now, and the run keeps {then}, which it "
                f"was begun with: to take {now}, give fit() the callback "
                f"keras.callbacks.LearningRateScheduler(lambda epoch, rate: {now})"
            )
        else:
            yield f"the {name} was {then}, and the run goes on with {now}"


def check_same_record(
    context: WorkerContext,
    mine: StepRecord,
    saved: Mapping[str, object],
    *,
    is_first: bool,
    is_one_of_several: bool = False,
) -> None:
    """Compare the step with that of a checkpoint of the run.

    A script that has changed since is told of by the client.  Another job may have another
    environment, or other files that its script reads: the user is told.  Of several trainings of
    a script each must be the one that it was.

    Raises:
        UsageError: the same script builds another step in the same job, or another training.
    """
    before = _record_in(saved)
    if before is None:
        return
    unlike = mine.unlike(before)
    is_same = before.script == mine.script
    if is_same and is_one_of_several and (unlike or before.begin not in ("", mine.begin)):
        what = "it begins with other weights"
        for name, then, now in unlike[:1]:
            what = f"the {name} is {now}, and was {then}"
        raise UsageError(f"a training of the script is another one than in the run: {what}")
    if _SCHEDULER in mine.asked:
        unlike = [setting for setting in unlike if not _is_kept(*setting)]
    if is_first and unlike and (not mine.job or mine.job != before.job):
        context.notify(f"{'; '.join(_asked_anew(unlike[:_MOST_TOLD]))}; --fresh begins a new run")
    if not is_same:
        return
    part = mine.difference(before)
    if part is None:
        return
    said = (
        f"a constant of {part} is another one now than in the launch that has made the checkpoint, "
        "though the script is the same"
    )
    if mine.job and before.job == mine.job:
        raise UsageError(
            f"{said}: give the run's numbers in the script, seed every random generator, take "
            "nothing that acts on training from the clock or the pid, and run again: it resumes"
        )
    if is_first:
        context.notify(
            f"{said}: the run goes on with the new one; if the script takes it from the clock, the "
            "pid or the environment, give it a fixed value"
        )
