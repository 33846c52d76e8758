"""What a worker must know that its script does not say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.signature import KeyFile
from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions

_NUMBERS = ("worker", "generation", "microbatches", "seed", "threads")
_LARGEST_GENERATION = (1 << 63) - 1
_NO_HISTORY = FailureHistory()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker's part of a launch, handed over by the agent when the worker starts.

    Everything but ``worker`` is the same for all workers of a launch.
    ``generation`` is that of the launch's first world; ``workers`` are its
    worker ids in rank order, the last ``len(workers) - capacity`` of them spares.
    ``microbatches``, ``seed`` and ``threads`` are those of the run: what the options leave
    open is settled.  ``history`` is that of the run before this launch.
    """

    options: JobOptions
    worker: WorkerId
    generation: int
    workers: tuple[WorkerId, ...]
    run_id: str
    microbatches: int
    seed: int
    threads: int
    key_file: KeyFile | None = None
    history: FailureHistory = _NO_HISTORY
    lease_token: str = ""
    """The token of the lease under which the launch may change the run directory."""
    draw_seed: str = ""
    """The seed of what the script draws without one, "" in a run of an older holdfast."""

    @property
    def run_dir(self) -> Path:
        """Where the run lives."""
        return self.options.run_dir

    @property
    def capacity(self) -> int:
        """Workers that hold microbatches; the others are spares."""
        return self.options.workers

    def to_json(self) -> dict[str, object]:
        """Return the configuration as a JSON object."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        key_file = self.key_file and dataclasses.asdict(self.key_file)
        history = dataclasses.asdict(self.history)
        return fields | {
            "options": self.options.to_json(),
            "key_file": key_file,
            "history": history,
        }

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> WorkerConfig:
        """Return the configuration that ``to_json`` wrote.

        Raises:
            UsageError: an option makes no sense.
            KeyError: a field is missing.
            TypeError: a field is missing, unknown or of another type.
            ValueError: an option is of another type, or a number makes no sense.
        """
        key_file = fields["key_file"]
        numbers = (*(fields[name] for name in _NUMBERS), *fields["workers"])
        if not all(type(number) is int for number in numbers):
            raise TypeError(f"{numbers} are not all whole numbers")
        if not 0 <= fields["generation"] <= _LARGEST_GENERATION:
            raise ValueError(f"generation is {fields['generation']}")
        if len(set(fields["workers"])) < len(fields["workers"]):
            raise ValueError(f"workers are {fields['workers']}")
        made = {
            "options": JobOptions.from_json(fields["options"]),
            "workers": tuple(WorkerId(worker) for worker in fields["workers"]),
            "key_file": key_file and KeyFile(**key_file),
            "history": _history(fields["history"]),
        }
        return WorkerConfig(**{**fields, **made})

    def encode(self) -> str:
        """Return the configuration as one line of JSON."""
        return json.dumps(self.to_json())

    @staticmethod
    def decode(text: str) -> WorkerConfig:
        """Return the configuration that ``encode`` wrote; raises what ``from_json`` does."""
        return WorkerConfig.from_json(json.loads(text))


def _history(fields: Mapping[str, Any]) -> FailureHistory:
    return FailureHistory(**{**fields, "rejected": tuple(fields.get("rejected", ()))})
