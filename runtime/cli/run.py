"""``holdfast run``, ``attach`` and ``sbatch``: start a job, take it over, or submit it to Slurm."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.runtime.batch.schedulers import (
    Allocation,
    find_allocation,
    options_of,
    refuse_copies,
    refuse_mpi_copies,
)
from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import (
    SETTINGS,
    OfScript,
    flags_of,
    given_flags,
    run_dir_argument,
)
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import (
    Sources,
    build_options,
    check_script,
)

if TYPE_CHECKING:
    from holdfast.runtime.batch.sbatch import BatchRequest


@click.command(cls=OfScript)
@flags_of(RUN)
@click.option(
    "--show-config",
    is_flag=True,
    help="Print each option with its origin, as a holdfast.toml, and run nothing.",
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("argv", metavar="[ARGS]...", nargs=-1)
@click.pass_context
def run(
    context: click.Context, /, script: Path, argv: tuple[str, ...], *, show_config: bool, **_: Any
) -> None:
    """Train SCRIPT with N workers through deaths of workers, and resume it when run again."""
    refuse_mpi_copies(os.environ)
    allocation = find_allocation(os.environ)
    built = build_options(script, argv, sources_of(context, allocation))
    if show_config:
        click.echo("\n".join(built.lines()))
        return
    if allocation is None:
        from holdfast.runtime.head.client import run_job

        sys.exit(run_job(built.options))
    from holdfast.runtime.head.client import run_batch_job

    refuse_copies(allocation)
    sys.exit(run_batch_job(built.options, allocation))


@click.command(cls=Documented, context_settings=SETTINGS)
@run_dir_argument
def attach(run_dir: Path) -> None:
    """Show the job in RUN_DIR whose client is gone: its output, its live line, its exit code.

    Ctrl-C stops the job, as it does for `holdfast run`.
    """
    from holdfast.runtime.head.client import attach as show

    sys.exit(show(run_dir.absolute()))


def sources_of(context: click.Context, allocation: Allocation | None) -> Sources:
    """Return everything that the options of ``holdfast run`` may stand in."""
    tables = context.find_object(dict) or {}
    given = given_flags(context)
    return Sources(
        given, os.environ, tables.get(RUN, {}), Path.cwd(), allocation=options_of(allocation)
    )


_OURS = ("--chain", "--dry-run", "-h", "--help")
_REST, _THEIRS = "what follows --", "options of sbatch"


class _Sbatch(Documented):
    """Keeps the options of sbatch, and the command after ``--``, as they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse our own options only."""
        cut = args.index("--") if "--" in args else len(args)
        before, ctx.meta[_REST] = args[:cut], tuple(args[cut + 1 :])
        ours: list[str] = []
        theirs: list[str] = []
        while before:
            word = before.pop(0)
            is_ours = word.partition("=")[0] in _OURS
            (ours if is_ours else theirs).append(word)
            if word == "--chain" and before:
                ours.append(before.pop(0))
        ctx.meta[_THEIRS] = tuple(theirs)
        return super().parse_args(ctx, ours)


@click.command(
    cls=_Sbatch,
    context_settings=SETTINGS,
    options_metavar="[SBATCH OPTIONS] [--chain K] [--dry-run] -- run [OPTIONS] SCRIPT [ARGS]...",
)
@click.option(
    "--chain",
    type=int,
    metavar="K",
    help="Submit K jobs, one after the other, in place of one that is requeued.",
)
@click.option("--dry-run", is_flag=True, help="Print the script, and submit nothing.")
@click.pass_context
def sbatch(context: click.Context, /, *, chain: int | None, dry_run: bool) -> None:
    """Submit `holdfast run` to Slurm; each job goes on where the last one has stopped."""
    from holdfast.runtime.batch.sbatch import SlurmRefused, script_of, submit

    request = _request(context, chain)
    if request.warning is not None:
        click.echo(f"holdfast sbatch: {request.warning}", err=True)
    script = script_of(request, secrets.token_hex(8))
    if dry_run:
        click.echo(script, nl=False)
        return
    try:
        for _ in range(chain or 1):
            click.echo(f"submitted batch job {submit(script)}")
    except SlurmRefused as error:
        raise ProgramError(f"{error}; the script is printed by --dry-run") from error


def _request(context: click.Context, chain: int | None) -> BatchRequest:
    """Return what is to be submitted; the options of the job are checked here already."""
    from holdfast.runtime.batch.sbatch import BatchRequest

    command: tuple[str, ...] = context.meta[_REST]
    if command[:1] != ("run",):
        raise UsageError(
            "`holdfast sbatch` submits `holdfast run`; give it as in "
            "`holdfast sbatch --time=1:00:00 -N 1 -n 4 -- run train.py`"
        )
    words = command[1:]
    with run.make_context("run", list(words), parent=context.parent) as inner:
        built = build_options(inner.params["script"], inner.params["argv"], sources_of(inner, None))
    options = built.options
    check_script(options.script)
    return BatchRequest(
        sbatch=context.meta[_THEIRS],
        run=words,
        run_dir=options.run_dir,
        programs=_programs(),
        chain=chain,
        requeues=options.requeue,
        workers=options.workers + options.spares if "workers" in built.origins else None,
    )


def _programs() -> Path:
    """Return the directory of the ``holdfast`` command that runs here."""
    beside = Path(sys.executable).parent
    found = shutil.which("holdfast", path=str(beside)) or shutil.which("holdfast")
    return beside if found is None else Path(found).parent
