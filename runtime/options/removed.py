"""Words that are no names of ours: what is near them, and what was removed with the way instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

REMOVED: Mapping[str, str] = {
    "chaos": '`holdfast run -n 4 --fresh --inject "random seed=7 count=5" train.py` does this',
    "import": "a new run begins with other weights by `holdfast run --initial WEIGHTS train.py`",
    "init": "a script of plain Keras is run as it is: `holdfast run -n 4 train.py`",
    "sbatch": "`exec holdfast run train.py` is the last line of a batch script, and docs/hpc.md "
    "has whole ones: a job that is requeued, several nodes, a chain",
    "sweep": '`holdfast.launch("train.py", "--lr", lr, n=2, run_dir=f"lr-{lr}")` in Python is one '
    "trial, for a loop or for Optuna; history of its result has the metrics",
    "--compare": "`holdfast report RUN_DIR` shows one run; print both and compare them",
    "--drain-every": "saves go to the run directory beside the training; --save-every says when",
    "--format": "the name of the file says it: end it in .npz, .weights.h5 or .keras",
    "--keep-space": "--keep N says how many of the newest checkpoints stay",
    "--key-file": "digests find accidental damage; the permissions of RUN_DIR keep others out",
    "--local-dir": "saves go to the run directory beside the training; leave it out",
    "--metrics-host": "--metrics-file FILE is read by the textfile collector of Prometheus",
    "--metrics-port": "--metrics-file FILE is read by the textfile collector of Prometheus",
    "--repair-from": "`holdfast repair RUN_DIR --from DIR` puts whole files back between two jobs",
    "--scrub-every": "`holdfast verify RUN_DIR` reads all checkpoints; start it from cron",
    "holdfast.ImageFolderData": "keras.utils.image_dataset_from_directory reads such a folder",
    "holdfast.TFRecordData": "tf.data.TFRecordDataset reads such files, and goes on at its place",
    **dict.fromkeys(
        ("holdfast.trial", "holdfast.Trial"),
        "each trial is a script of its own, which holdfast.launch runs with other arguments",
    ),
}
"""Commands, flags and names of Python; a flag is also a variable and a key of ``holdfast.toml``."""

_NEAR = 0.7
"""Two names that have so large a part of their letters in common differ by a slip."""

OF_SCRIPTS_TOO = frozenset({"--compare", "--format"})
"""Flags that a script may well have, whose own options are not in its text."""


def nearest(word: str, known: Iterable[str], otherwise: str = "", form: str = "{}") -> str:
    """Return the question whether a known name was meant, ``otherwise`` if none is near."""
    near = difflib.get_close_matches(word, list(known), 1, _NEAR)
    return f"did you mean {form.format(near[0])}?" if near else otherwise


def removal_of(name: str) -> str | None:
    """Return the sentence on a command, flag or name that was removed, None if it was none."""
    way = REMOVED.get(name)
    return None if way is None else f"{name} was removed: {way}"


def removal_of_key(key: str) -> str | None:
    """Return the sentence on a flag that was removed, by its name in a file or a variable."""
    return removal_of("--" + key.lower().replace("_", "-"))
