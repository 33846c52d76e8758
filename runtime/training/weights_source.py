"""The source of a new run's weights: a path, and the kind of file or directory there.

This file looks only at paths, so that a wrong path is refused before the job starts.
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
    """The kinds of sources that a run can take its first weights from."""

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
        """The kind, told by the name and by whether the path is a directory."""
        if self.path.is_dir():
            is_tensorflow = (self.path / _NEWEST_OF_TENSORFLOW).is_file()
            return WeightsKind.TENSORFLOW if is_tensorflow else WeightsKind.RUN
        if self.path.suffix == ".npz":
            return WeightsKind.ARCHIVE
        is_keras = self.path.name.endswith(_KERAS_SUFFIXES)
        return WeightsKind.KERAS if is_keras else WeightsKind.TENSORFLOW

    def check(self) -> None:
        """Refuse a wrong path or step, without reading any weights.

        Raises:
            UsageError: the file or directory does not exist, or has no such step.
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
        """Refuse a path at which there is no file.

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
