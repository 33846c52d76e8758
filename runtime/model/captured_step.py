"""One tracing of a script's own step: its updates, its logs, and what it assigned.

The step runs inside a ``keras.StatelessScope``, so that it changes nothing.  Variables keep their
own values in it.  So the tapes of the script find them.  Only metrics begin anew, and seed
generators with the microbatch's seeds.

The script hands its gradients to an optimizer, by ``apply`` or ``apply_gradients``.  That is the
place where the sum over all microbatches comes in.  So the call is caught here, and made later with
the mean gradients.  The methods are replaced on the classes, because a script may keep its
optimizers anywhere.

The logs that the step returns are shown by ``fit``.  A value is the result of a metric, or a number
of the batch such as a loss.  Results of metrics are computed from the sums of their variables.  Of
a number, ``fit`` shows that of the last batch.  For a batch in parts it is the mean over the parts,
weighted by samples, or their sum, as `batch_mixing` has found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.graphs import Batch
from holdfast.runtime.model.random_ops import draws_from, equal_draws, replaced

Starts: TypeAlias = Mapping[int, Any]
"""Values that metric variables have after a reset, by identity of the variable, if not zero."""


def metric_starts(model: Any) -> Starts:
    """Reset the metrics, and return what is not zero then: a setting of a metric, say."""
    model.reset_metrics()
    values = ((id(v), np.asarray(v.value)) for v in model.metrics_variables)
    return {key: value for key, value in values if np.any(value)}


def start_of(variable: Any, starts: Starts) -> Any:
    """Return the value with which a microbatch begins to update a metric variable."""
    found = starts.get(id(variable))
    return tf.zeros(variable.shape, variable.dtype) if found is None else tf.constant(found)


_METHODS = ("apply", "apply_gradients")


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerCall:
    """One update that the script asked an optimizer for."""

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]
    """One for each gradient; both without the pairs whose gradient is None."""
    everything: tuple[Any, ...]
    """All variables that were given, with or without a gradient."""
    method: str
    original: Callable[..., Any]

    def make(self, gradients: Sequence[Any]) -> None:
        """Make the call now, with other gradients for the same variables."""
        variables = list(self.variables)
        if self.method == "apply":
            self.original(self.optimizer, list(gradients), variables)
        else:
            self.original(self.optimizer, list(zip(gradients, variables, strict=True)))


Handler: TypeAlias = Callable[[OptimizerCall], None]


@contextmanager
def caught_calls(handle: Handler) -> Iterator[None]:
    """Hand each update of any optimizer to ``handle``, which may make it, instead of making it."""
    is_handling = False

    def stand_in(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def caught(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal is_handling
            if is_handling:  # the call is made, and calls methods of this optimizer or another
                return original(optimizer, *arguments, **named)
            is_handling = True
            try:
                handle(_call_of(optimizer, method, original, (arguments, named)))
            finally:
                is_handling = False
            return optimizer.iterations

        return caught

    with ExitStack() as stack:
        for kind in _kinds():
            own = {
                name: stand_in(name, vars(kind)[name]) for name in _METHODS if name in vars(kind)
            }
            stack.enter_context(replaced(kind, own))
        yield


def _call_of(
    optimizer: Any, method: str, original: Callable[..., Any], given: tuple[Any, Any]
) -> OptimizerCall:
    arguments, named = given
    if method == "apply_gradients":
        pairs = list(arguments[0] if arguments else named["grads_and_vars"])
    else:
        gradients = arguments[0] if arguments else named["grads"]
        variables = arguments[1] if len(arguments) > 1 else named.get("trainable_variables")
        if variables is None:
            variables = getattr(optimizer, "_trainable_variables", ())
        pairs = list(zip(gradients, variables, strict=True))
    graded = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    return OptimizerCall(
        optimizer,
        tuple(gradient for gradient, _ in graded),
        tuple(variable for _, variable in graded),
        tuple(variable for _, variable in pairs),
        method,
        original,
    )


def _kinds() -> Iterator[type]:
    """Yield every class of optimizer that there is."""
    known: set[type] = set()
    pending = [kind for kind in keras.optimizers.Optimizer.__mro__ if kind is not object]
    while pending:
        kind = pending.pop()
        if kind in known:
            continue
        known.add(kind)
        yield kind
        if issubclass(kind, keras.optimizers.Optimizer):
            pending.extend(kind.__subclasses__())


@dataclass(slots=True, eq=False)
class CapturedStep:
    """What a step has done."""

    step: OwnStep
    scope: Any
    metrics: tuple[Any, ...]
    calls: list[tuple[OptimizerCall, int]] = field(default_factory=list)
    """Updates, each with the position in the graph at which it was asked for."""
    assigned: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """Variables that were assigned a value, by identity, and where that was for the first time."""
    logs: Any = None
    results: dict[int, Any] = field(default_factory=dict)
    """The tensors that metrics returned as results, by identity: a metric and a path."""

    @property
    def state(self) -> list[Any]:
        """Variables beside metrics and seeds that were assigned."""
        ours = {id(v) for v in (*self.metrics, *self.step.generators)}
        return [v for v, _ in self.assigned.values() if id(v) not in ours]

    def added(self, metric: Any) -> Any:
        """Return what the step has added to a metric variable."""
        value, starts = self.value(metric), self.step.starts
        return value - starts[id(metric)] if id(metric) in starts else value

    def value(self, variable: Any) -> Any:
        """Return the value that the step leaves the variable with; None is its old one."""
        return self.scope.state_mapping.get(id(variable))


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A script's own ``train_step`` or ``test_step``, and the seeds of what it draws."""

    model: Any
    method: str
    """``train_step`` or ``test_step``."""
    generators: tuple[Any, ...]
    """States of seed generators."""
    starts: Starts = field(default_factory=dict)
    """What metric variables begin with, if it is not zero."""

    @property
    def name(self) -> str:
        """The step as the user knows it."""
        return f"{type(self.model).__name__}.{self.method}"

    def capture(
        self,
        batch: Batch,
        seeds: Any,
        handle: Callable[[CapturedStep, OptimizerCall], None],
        values: Iterable[tuple[Any, Any]] = (),
    ) -> CapturedStep:
        """Run the step on a batch without changing anything; ``handle`` gets its updates.

        Without ``seeds`` all samples draw the same.  ``values`` are those of some variables that
        shall have others than their own.
        """
        metrics = tuple(self.model.metrics_variables)
        mapping = [*((v, start_of(v, self.starts)) for v in metrics), *values]
        if seeds is not None:
            drawn = enumerate(self.generators)
            mapping += [(v, tf.cast(seeds[i], v.dtype)) for i, v in drawn]
        captured = CapturedStep(self, _Scope(mapping), metrics)
        with ExitStack() as stack:
            draws = equal_draws() if seeds is None else draws_from(seeds[len(self.generators)])
            stack.enter_context(draws)
            stack.enter_context(caught_calls(lambda call: handle(captured, call)))
            captured.results = stack.enter_context(noted_results(self.model.metrics))
            stack.enter_context(captured.scope)
            try:
                captured.logs = getattr(self.model, self.method)(data_of(batch))
            except AttributeError as error:
                model_rules.check_gradients_of(captured.scope.assigned.values(), self.name, error)
                raise
        # Keras resets and shows its own loss only if it is among the model's metrics.
        own_loss = getattr(self.model._loss_tracker, "variables", ())
        unseen = {id(v) for v in own_loss}.difference(map(id, metrics))
        assigned = captured.scope.assigned.items()
        captured.assigned = {key: at for key, at in assigned if key not in unseen}
        return captured

    def discover(self, batch: Batch) -> None:
        """Trace the step once, so that all variables are made as ``fit`` makes them.

        Raises:
            ProgramError: the model runs eagerly, and its step cannot be traced.
        """

        def trace(*tensors: Any) -> None:
            flat = iter(tensors)
            whole = keras.tree.map_structure(lambda _: next(flat), data_of(batch))
            with caught_calls(lambda call: _build(call, self.name)):
                getattr(self.model, self.method)(whole)

        flat = [t for t in keras.tree.flatten(data_of(batch)) if t is not None]
        specifications = map(tf.TensorSpec.from_tensor, flat)
        try:
            tf.function(trace, autograph=False).get_concrete_function(*specifications)
        except ProgramError:
            raise
        except Exception as error:  # of the script
            model_rules.check_traceable(self.model, self.method, error)
            raise


class _Scope(keras.StatelessScope):  # type: ignore[misc]  # Keras finds its scope by this type
    """A scope that knows which variables were assigned, not only their identities."""

    def __init__(self, mapping: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(mapping, collect_losses=True, initialize_variables=False)
        self.assigned: dict[int, tuple[Any, int]] = {}

    def get_current_value(self, variable: Any) -> Any:
        """Return the value for Keras's regularizers, which ask for that of every variable."""
        found = super().get_current_value(variable)
        return variable._value if found is None else found

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, _ = update
        self.assigned.setdefault(id(variable), (variable, _position()))
        super().add_update(update)


@contextmanager
def outside(scope: Any) -> Iterator[None]:
    """Change variables for good, within a captured step."""
    scope.__exit__(None, None, None)
    try:
        yield
    finally:
        scope.__enter__()


def record(captured: CapturedStep, call: OptimizerCall) -> None:
    """Note an update instead of making it."""
    captured.calls.append((call, _position()))


def _position() -> int:
    """Return how many operations were traced so far."""
    if tf.executing_eagerly():
        return 0
    return len(tf.compat.v1.get_default_graph().get_operations())


def data_of(batch: Batch) -> Any:
    """Return the batch as ``fit`` hands it to a step."""
    if batch.is_x_alone:
        return (batch.x,)
    return keras.utils.pack_x_y_sample_weight(batch.x, batch.y, batch.weights)


def _build(call: OptimizerCall, step: str) -> None:
    model_rules.check_branch(tf.compat.v1.get_default_graph(), step)
    if not call.optimizer.built:
        call.optimizer.build(list(call.everything))
        call.optimizer.built = True


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A value of the logs that a metric gives; ``path`` leads into a result of several values."""

    name: str
    metric: Any
    path: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A value of the logs that belongs to the batch; it has ``size`` floats."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of floats."""
        return int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True, slots=True)
class StepLogs:
    """What the logs of a step consist of; ``all_results`` as in ``Model.get_metrics_result``."""

    model: Any
    entries: tuple[MetricResult | Number, ...]
    all_results: bool

    @staticmethod
    def of(model: Any, logs: Any, noted: dict[int, Any], step: str) -> StepLogs:
        """Return the kinds of the values of ``logs``.

        Raises:
            ProgramError: the step returns no dictionary.
        """
        if not isinstance(logs, dict):
            raise ProgramError(
                f"{step} returns {_described(logs)}, not its logs: return a dictionary such as "
                '{"loss": self.loss_tracker.result()}'
            )
        entries = tuple(_entry(name, value, noted) for name, value in _flat(logs))
        known = set(model.get_metrics_result())
        return StepLogs(model, entries, all_results=known == set(logs))

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The values that belong to the batch, if they are shown."""
        if self.all_results:
            return ()
        return tuple(entry for entry in self.entries if isinstance(entry, Number))

    def numbers_in(self, logs: Any) -> list[Any]:
        """Return the tensors of ``numbers`` in the logs of one tracing."""
        found = dict(_flat(logs))
        return [found[number.name] for number in self.numbers]

    def shown(self, floats: npt.NDArray[Any]) -> dict[str, float]:
        """Return the logs, from the metrics' variables and the floats of ``numbers``."""
        if self.all_results:
            return dict(scalars(self.model.get_metrics_result()))
        shown: dict[str, float] = {}
        start = 0
        for entry in self.entries:
            if isinstance(entry, MetricResult):
                value = entry.metric.result()
                for key in entry.path:
                    value = value[key]
            else:
                value = np.reshape(floats[start : start + entry.size], entry.shape)
                start += entry.size
            shown |= scalars({entry.name: value})
        return shown


@contextmanager
def noted_results(metrics: Iterable[Any]) -> Iterator[dict[int, Any]]:
    """Note which tensors are results of metrics while a step is traced."""
    noted: dict[int, Any] = {}
    wrapped = list(metrics)
    try:
        for metric in wrapped:
            vars(metric)["result"] = functools.partial(_noting, noted, metric, metric.result)
        yield noted
    finally:
        for metric in wrapped:
            vars(metric).pop("result", None)


def scalars(logs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of logs; a value of several numbers gives ``name/0``, ``name/1``..."""
    for name, value in _flat(logs):
        values = np.asarray(value, dtype=np.float64)
        for i, number in enumerate(values.reshape(-1).tolist()):
            yield f"{name}/{i}" if values.ndim else name, number


def _described(logs: Any) -> str:
    if logs is None:
        return "nothing"
    return "a tensor" if keras.ops.is_tensor(logs) else f"an object of type {type(logs).__name__}"


def _noting(
    noted: dict[int, Any], metric: Any, result: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    value = result(*arguments, **named)
    for path, leaf in keras.tree.flatten_with_path(value):
        noted[id(leaf)] = (metric, path, leaf)  # the leaf is kept, so that its id stays its own
    return value


def _entry(name: str, value: Any, noted: dict[int, Any]) -> MetricResult | Number:
    if id(value) in noted:
        metric, path, _ = noted[id(value)]
        return MetricResult(name, metric, tuple(path))
    return Number(name, tuple(getattr(value, "shape", ())))


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; a dictionary within is shown as its values, as ``fit`` does."""
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value
