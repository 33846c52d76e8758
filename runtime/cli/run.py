"""``holdfast run``: start a training job, or resume the one in its run directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.cli import job_options
from holdfast.runtime.options.config import (
    DEFAULT_HEARTBEAT_TIMEOUT_S,
    DEFAULT_MAX_RESTARTS,
    RunConfig,
    default_run_dir,
)
from holdfast.runtime.options.worker_config import DEFAULT_SCRUB_EVERY_S


class _FaultAddress(click.types.StringParamType):
    """The text of one address; several in one variable stand between semicolons."""

    name = "fault"
    envvar_list_splitter = ";"


class _SecondsOrNever(click.types.FloatParamType):
    """A number of seconds; "never" is 0."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        return 0.0 if value == "never" else float(super().convert(value, param, ctx))


@click.command(context_settings=job_options.SETTINGS)
@click.option("-n", "-np", "--workers", type=int, default=1, help="Workers to start with.")
@click.option(
    "--spares", type=int, default=0, help="Started workers that wait to replace the dead."
)
@job_options.run_dir
@job_options.microbatches
@job_options.threads
@job_options.seed
@click.option(
    "--initial",
    type=job_options.PATH,
    metavar="WEIGHTS",
    help="What a new run begins with: a file, or another run.  [default: what the script says]",
)
@click.option(
    "--save-every",
    metavar="WHEN",
    help='Steps (100), a time ("10min"), "epoch" or "auto".  [default: what the script says]',
)
@click.option(
    "--verify-every",
    type=int,
    metavar="STEPS",
    help="Steps between comparisons of the workers' states.  [default: what the script says]",
)
@click.option(
    "--snapshot-copies",
    type=int,
    metavar="1|2",
    help="Workers that hold a snapshot of each slice.  [default: 2, on different nodes, where "
    "there are several; else 1]",
)
@click.option(
    "--scrub-every",
    type=_SecondsOrNever(),
    default=DEFAULT_SCRUB_EVERY_S,
    metavar="SECONDS",
    help='Time between readings of an old checkpoint, to find damage; 0 or "never" for none.',
)
@click.option(
    "--repair-from",
    type=job_options.PATH,
    metavar="DIR",
    help="Another copy of the run directory, from which damaged checkpoints are mended.",
)
@job_options.key_file
@click.option(
    "--heartbeat-timeout",
    type=float,
    default=DEFAULT_HEARTBEAT_TIMEOUT_S,
    metavar="SECONDS",
    help="Kill a worker that stands still for longer than this.",
)
@click.option(
    "--max-restarts",
    type=int,
    default=DEFAULT_MAX_RESTARTS,
    help="Relaunches of a job that died whole; one without progress counts double.",
)
@job_options.fresh
@click.option("--strict", is_flag=True, help="Refuse to resume with other numerics.")
@click.option("--shrink/--no-shrink", default=True, help="Whether survivors go on in place.")
@job_options.preload
@job_options.mpiexec
@job_options.verbose
@click.option(
    "--inject",
    type=_FaultAddress(),
    multiple=True,
    metavar="FAULT",
    help='A fault to strike, as in "kill worker=2 step=30 site=reduce"; may be repeated.',
)
@click.argument("script", type=job_options.PATH)
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
def run(script: Path, argv: tuple[str, ...], **options: Any) -> None:
    """Train SCRIPT with N workers through deaths of workers, and resume it when run again."""
    from holdfast.runtime.supervisor.supervisor import run_job

    sys.exit(run_job(_config(script, argv, options)))


def _config(script: Path, argv: tuple[str, ...], options: dict[str, Any]) -> RunConfig:
    """Build the job's configuration from the merged options, renamed where values have units."""
    run_dir: Path = options.pop("run_dir") or default_run_dir(script)
    repair_from: Path | None = options.pop("repair_from")
    initial: Path | None = options.pop("initial")
    key_file: Path | None = options.pop("key_file")
    return RunConfig(
        script=script.absolute(),
        run_dir=run_dir.absolute(),
        argv=argv,
        repair_from=None if repair_from is None else repair_from.absolute(),
        scrub_every_s=options.pop("scrub_every"),
        initial=None if initial is None else initial.absolute(),
        key_file=None if key_file is None else key_file.absolute(),
        heartbeat_timeout_s=options.pop("heartbeat_timeout"),
        faults=options.pop("inject"),
        **options,
    )
