"""``holdfast sbatch``: write and submit a batch script for Slurm."""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path

import click

from holdfast.runtime.batch.sbatch import BatchRequest, SlurmRefused, script_of, submit
from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import SETTINGS
from holdfast.runtime.cli.run import run, sources_of
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.options.sources import build_options, check_script

_OURS = ("--chain", "--dry-run", "-h", "--help")
_REST = "what follows --"


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
        ctx.meta[__name__] = tuple(theirs)
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
        sbatch=context.meta[__name__],
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
