"""What must be equal, and the one comparison: for workers of a world, and for a run that goes on.

Every worker runs the whole script, so it may see what the others do not.  These must be equal:

* *numerics*: a difference is a warning, or an error under ``--strict``;
* *the job* (`TrainingJob.facts`): a script may draw its data from an unseeded generator.  It has
  other data on each worker then, and trains on a mixture that no run would give again.  A script
  with other samples, or another model, is refused when the run resumes;
* *the step*: a script may take a setting from the pid or the clock.  Then each worker would add
  gradients of another loss, or of another model, and a death would change the result;
* *callbacks*: workers with other ones would not meet to agree on their effects;
* *weights*, where they begin a training only: a checkpoint replaces them.

Workers compare one digest of each of these first.  Only if one differs do they tell each other what
it is made of, and the first difference is named.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.tensor import TensorSpec, digest_of, specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.model.model_rules import some_of
from holdfast.runtime.model.step_facts import DIGEST, GraphFacts, value_of
from holdfast.runtime.run.events import NumericsDiffer
from holdfast.runtime.run.numerics import Numerics, differences, differing, refuse_differences
from holdfast.runtime.script.modules import script_digest
from holdfast.runtime.system.codec import JSON_NAME, WrongValue, from_plain, to_plain
from holdfast.runtime.training.callback_host import CALLBACKS
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.training_job import DATA, FIRST_EPOCH, MICROBATCHES, TrainingJob
from holdfast.runtime.worker.context import WorkerContext

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

_NAMES = {DATA: "digest of the training data"}
_MAY_LACK = (FIRST_EPOCH, DATA)
"""Facts that older checkpoints, or samples that tell nothing, do not have."""

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
"""A worker, and what it has told the others."""


@dataclass(frozen=True, slots=True)
class Mine:
    """What a worker compares with the others."""

    context: WorkerContext
    job: TrainingJob
    state: TrainingState
    cursor: Cursor


def _numerics(mine: Mine) -> dict[str, object]:
    return to_plain(mine.job.numerics)  # type: ignore[no-any-return]


def _work(mine: Mine) -> dict[str, object]:
    return {f"the {_NAMES.get(name, name)}": value for name, value in mine.job.facts.items()}


def _callbacks(mine: Mine) -> dict[str, object]:
    return dict(mine.state.callback_host.settings())


def _shapes(mine: Mine) -> dict[str, object]:
    specs = specs_of(mine.state.tensors(mine.cursor))
    return {
        f"the shape of {spec.name.removeprefix('weights/')}": f"{spec.shape} {spec.dtype}"
        for spec in specs
        if not spec.name.startswith(_CURSOR)
    }


def _step(mine: Mine) -> dict[str, object]:
    facts = mine.state.facts
    settings, rest = ({}, {}) if facts is None else (facts.settings(), facts.rest())
    return {**_callbacks(mine), **settings, **_shapes(mine), **rest}


def _step_digest(mine: Mine) -> str:
    """Return the digest of what acts on the step: settings only explain a difference."""
    facts = mine.state.facts
    return _digest({"": "" if facts is None else facts.digest, **_shapes(mine)})


def _weights(mine: Mine) -> dict[str, object]:
    made, tensors = mine.state.made, mine.state.tensors(mine.cursor)
    return {
        _initial(name): made.get(name) or value_of(value)
        for name, value in tensors.items()
        if not name.startswith(_CURSOR)
    }


@dataclass(frozen=True, slots=True)
class _Compared:
    """Facts that workers compare: how they are taken, and what follows if they differ.

    ``judge`` gets what each worker has taken, in rank order.
    """

    take: Callable[[Mine], Mapping[str, object]]
    judge: Callable[[WorkerContext, Sequence[_Told]], None]
    digest: Callable[[Mine], str] | None = None


def compare(membership: Membership, mine: Mine, *, weights: bool = False) -> None:
    """Compare all that must be equal before the first step, or the weights that begin a training.

    Raises:
        UsageError: the numerics differ and the job is strict; raised on all workers alike.
        ProgramError: something else differs; raised on all workers alike.
        WorldBroken: a member died.
    """
    if membership.communicator.size == 1:
        return
    compared = _AT_BEGIN if weights else _AT_START
    digests = [c.digest(mine) if c.digest else _digest(c.take(mine)) for c in compared]
    everyones = _told_by_all(membership, digests)
    for number, each in enumerate(compared):
        if len({found[number] for _, found in everyones}) > 1:
            each.judge(mine.context, _told_by_all(membership, each.take(mine)))


def _digest(facts: Mapping[str, object]) -> str:
    return digest_of(json.dumps(facts).encode())


def _told_by_all(membership: Membership, mine: Any) -> list[_Told]:
    """Return what all workers give, a JSON value, in rank order."""
    found = membership.communicator.allgather_bytes(json.dumps(mine).encode())
    return list(zip(membership.world.workers, map(json.loads, found), strict=True))


def _judge_numerics(context: WorkerContext, told: Sequence[_Told]) -> None:
    (one, first), *others = told
    for two, theirs in others:
        subject = f"worker {two} has other numerics than worker {one}"
        _judge(context, subject, differences(first, theirs, f"worker {one} has"))


def _judge(context: WorkerContext, subject: str, found: tuple[str, ...]) -> None:
    if context.config.options.strict:
        refuse_differences(subject, found)
    if found:
        context.journal.record(NumericsDiffer(differences=found))
        context.notify(f"{subject}: {'; '.join(found)}: its bytes may differ")


def _refuse(
    say: Callable[[str, _Told, _Told], str], *, only_common: bool = False
) -> Callable[[WorkerContext, Sequence[_Told]], None]:
    """Return what names the first fact in which a worker differs from the first one."""

    def judge(context: WorkerContext, told: Sequence[_Told]) -> None:
        (one, first), *others = told
        for two, theirs in others:
            for name in differing(first, theirs, only_common=only_common):
                raise ProgramError(say(name, (one, first.get(name)), (two, theirs.get(name))))

    return judge


def _other_work(name: str, one: _Told, two: _Told) -> str:
    return (
        f"{name} of worker {two[0]} is {two[1]}, and that of worker {one[0]} is {one[1]}: every "
        "worker runs the whole script, so all must see the same; seed every random generator, and "
        "sort lists of files"
    )


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


def _initial(name: str) -> str:
    short = next((name.removeprefix(part) for part in _STEP_PARTS if name.startswith(part)), name)
    is_rate = name.startswith("optimizer/") and name.endswith(_RATE)
    return "the learning rate" if is_rate else f"the initial weights of {short}"


_AT_START = (
    _Compared(_numerics, _judge_numerics),
    _Compared(_work, _refuse(_other_work)),
    _Compared(_step, _refuse(_other_step), _step_digest),
    _Compared(_callbacks, _refuse(_other_step, only_common=True)),
)
_AT_BEGIN = (_Compared(_weights, _refuse(_other_step)),)


def check_resumed(
    mine: Mine, saved: Manifest, *, is_first: bool, is_one_of_several: bool = False
) -> None:
    """Refuse to go on with a checkpoint of another model, other samples or another step.

    Other numerics are told, and refused if the job is strict.

    Raises:
        UsageError: one sentence tells the difference, and the ways out.
    """
    context = mine.context
    specs = specs_of(mine.state.tensors(mine.cursor))
    difference = model_difference(saved.specs, specs)
    if difference is not None:
        raise UsageError(
            f"the run in {context.run_dir} and the script differ in the {difference}; {_WAYS_OUT}"
        )
    check_same_job(context, mine.job.facts_of_run, saved.cursor)
    check_same_record(
        context,
        StepRecord.of(mine),
        saved.cursor,
        is_first=is_first,
        is_one_of_several=is_one_of_several,
    )
    try:
        before = Numerics.from_json(dict(saved.numerics))
    except ValueError as error:
        raise UsageError(f"checkpoint step {saved.step}: {error}") from error
    if is_first or context.config.options.strict:
        subject = f"the numerics of the run in {context.run_dir} have changed"
        origin = "the checkpoint was made with"
        _judge(context, subject, differences(to_plain(before), _numerics(mine), origin))


def check_same_job(
    context: WorkerContext, mine: Mapping[str, object], saved: Mapping[str, object]
) -> None:
    """Compare the facts of the job with those of a manifest's cursor.

    Raises:
        UsageError: one sentence tells the difference, and both ways out.
    """
    before = {name: saved.get(name) for name in mine}
    for name in differing(mine, before):
        was, now = before[name], mine[name]
        if name == MICROBATCHES or (name in _MAY_LACK and None in (was, now)):
            continue
        told = f"{_said(name, was)}, and the script has {_said(name, now)}: go back to that, "
        if name == DATA:
            told = (
                f"other samples (digest {was}, now {now}): if they are random, seed every "
                "generator of the script; else "
            )
        raise UsageError(f"the run in {context.run_dir} was begun with {told}{_WAYS_OUT}")


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
    old, mine = some_of(gone, _MOST_TOLD), some_of(new, _MOST_TOLD)
    if not new:
        return f"the checkpoint has {old}, which the script does not have"
    if not gone:
        return f"the script has {mine}, which the checkpoint does not have"
    return f"the checkpoint has {old}; the script has {mine}"


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
    def of(mine: Mine) -> StepRecord:
        """Return the record of a step of which nothing was loaded yet."""
        state, facts, config = mine.state, mine.state.facts, mine.context.config
        graphs = GraphFacts() if facts is None else facts.graphs
        asked = {} if facts is None else dict(islice(facts.settings().items(), _MOST_PARTS))
        if _SCHEDULER in state.callback_host.settings().get(CALLBACKS, ""):
            asked[_SCHEDULER] = "given"
        parts = graphs.parts
        if len(parts) > _MOST_PARTS:
            parts = {"the step": digest_of(repr(sorted(parts.items())).encode())}
        made_by = f"{type(state.replica).__name__} {_numerics(mine)}"
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
        found = differing(self.asked, before.asked, only_common=True)
        return [(name, before.asked[name], self.asked[name]) for name in found]

    def difference(self, before: StepRecord) -> str | None:
        """Return the part of the step whose constants differ now, None for none.

        Only constants are compared: the operations may follow from the weights of the model,
        and these are others after a relaunch.
        """
        if (self.made_by, self.operations) != (before.made_by, before.operations):
            return None
        return next(differing(self.parts, before.parts), None)


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
