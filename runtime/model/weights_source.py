"""Where the weights of a new run come from: a path, and what kind of thing lies there.

Paths only: whoever starts a job can tell a wrong one before anything else happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.stored_run import StoredRun

_KERAS_SUFFIXES = (".weights.h5", ".keras")
_NOT_WEIGHTS = ("cursor/", "optimizer/")
_NEWEST_OF_TENSORFLOW = "checkpoint"
"""The file in which TensorFlow notes which of a directory's checkpoints is the newest."""


class WeightsKind(Enum):
    """What can be begun with."""

    RUN = "another run's directory"
    ARCHIVE = "an .npz file"
    KERAS = "a file that Keras reads"
    TENSORFLOW = "a TensorFlow checkpoint"


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """A file or directory of weights; ``step`` is one of another run, by default its newest."""

    path: Path
    step: int | None = None

    @property
    def kind(self) -> WeightsKind:
        """What it is, by its name and whether it is a directory."""
        if self.path.is_dir():
            is_tensorflow = (self.path / _NEWEST_OF_TENSORFLOW).is_file()
            return WeightsKind.TENSORFLOW if is_tensorflow else WeightsKind.RUN
        if self.path.suffix == ".npz":
            return WeightsKind.ARCHIVE
        is_keras = self.path.name.endswith(_KERAS_SUFFIXES)
        return WeightsKind.KERAS if is_keras else WeightsKind.TENSORFLOW

    def check(self) -> None:
        """Refuse what can be seen to be wrong without reading any weights.

        Raises:
            UsageError: there is nothing of the kind, or no such step.
        """
        kind = self.kind
        if kind is WeightsKind.RUN:
            StoredRun.open(self.path).step(self.step)
        else:
            if self.step is not None:
                raise UsageError(
                    f"{self.path} is {kind.value} and has no step {self.step}; "
                    "only another run's directory has steps"
                )
            self.check_file()

    def check_file(self) -> None:
        """Refuse a path that nothing lies at.

        Raises:
            UsageError: there is no such file.
        """
        path = self.path
        if self.kind is WeightsKind.TENSORFLOW and not path.is_dir():
            path = path.with_name(f"{path.name}.index")
        if not path.exists():
            raise UsageError(
                f"{path} does not exist; begin with a .weights.h5, .keras or .npz file, the prefix "
                "or directory of a TensorFlow checkpoint, or another run's directory"
            )


def is_weight(name: str) -> bool:
    """Return whether a tensor of a state is a weight, not the optimizer's or the cursor's."""
    return not name.startswith(_NOT_WEIGHTS)
