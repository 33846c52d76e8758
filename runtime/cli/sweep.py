"""``holdfast sweep``: trials of an Optuna study, each of which is a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.batch.schedulers import refuse_mpi_copies
from holdfast.runtime.cli.option_flags import PATH, OfScript, flags_of, given_flags
from holdfast.runtime.head.screen import say
from holdfast.runtime.options.job_options import OPTIONS
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import check_script
from holdfast.runtime.sweep.study import DIRECTIONS, PRUNERS, SAMPLERS, StudyTerms
from holdfast.runtime.sweep.sweep import Sweep, SweepTerms


@click.command(cls=OfScript)
@click.option("--study", metavar="URL", required=True, help="The storage, as sqlite:///sweep.db.")
@click.option(
    "--trials", type=click.IntRange(1), required=True, help="How many trials the sweep has in all."
)
@click.option(
    "--parallel",
    type=click.IntRange(1),
    metavar="K",
    help="Trials side by side.  [default: cores / N of -n]",
)
@click.option("--name", help="The name of the study.  [default: the script's]")
@click.option("--direction", type=click.Choice(DIRECTIONS), default=DIRECTIONS[0])
@click.option("--sampler", type=click.Choice([*SAMPLERS]), default="tpe")
@click.option("--pruner", type=click.Choice([*PRUNERS]), default="median")
@flags_of(RUN, run_dir="Where the sweep lives: trial-N below it is a run.")
@click.argument("script", type=PATH)
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
@click.pass_context
def sweep(context: click.Context, /, script: Path, argv: tuple[str, ...], **asked: Any) -> None:
    """Search parameters: run SCRIPT in many trials, each a run that survives deaths and resumes.

    SCRIPT reads its parameters from holdfast.trial().  Run the same command again to go on.
    """
    refuse_mpi_copies(os.environ)
    check_script(script)
    given = {name: value for name, value in given_flags(context).items() if OPTIONS[name].flags}
    directory = Path(given.pop("run_dir", f"holdfast-{script.stem}-sweep"))
    study = StudyTerms(
        asked["study"],
        asked["name"] or script.stem,
        asked["direction"],
        asked["sampler"],
        asked["pruner"],
        int(given.get("seed", 0)),
    )
    terms = SweepTerms(study, asked["trials"], asked["parallel"], directory, script, argv, given)
    sys.exit(Sweep(terms, say).run())
