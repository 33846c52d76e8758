"""``holdfast demo``: all workers of a training die, and its bytes stay those of another one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from holdfast.runtime.commands.help import Documented
from holdfast.runtime.errors import ExitCode

_BEGIN = """\
A small network learns to read digits with 4 workers, and all 4 are killed on the
way. Then 1 worker learns the same, undisturbed. Both must end with the same bytes.
This takes a minute or two.
"""


@click.command(cls=Documented)
@click.option("--keep", is_flag=True, help="Leave the script and both runs, and say where.")
@click.pass_context
def demo(context: click.Context, /, *, keep: bool) -> None:
    """Kill all workers of a training on its way, and compare its final bytes with undisturbed ones.

    Exits with 0 if they are the same, with 1 if not.
    """
    click.echo(_BEGIN)  # what is imported next takes a moment
    from holdfast.runtime.commands.demonstration import FAULTS, broken_promises, train
    from holdfast.runtime.commands.report import report

    place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        disturbed = train(place, "disturbed", 4, FAULTS)
        click.echo("\nThe same with 1 worker, undisturbed:\n")
        undisturbed = train(place, "undisturbed", 1)
        click.echo("\nThe run whose workers have died, by `holdfast report`:\n")
        context.invoke(report, run_dir=place / "disturbed", as_json=False, page=None)
    finally:
        if keep:
            click.echo(f"\nThe script and both runs are in {place}.")
        else:
            shutil.rmtree(place, ignore_errors=True)
    click.echo("\nsha256 of the final state")
    click.echo(f"  4 workers, all killed  {disturbed.final_sha256}")
    click.echo(f"  1 worker, undisturbed  {undisturbed.final_sha256}")
    broken = broken_promises(disturbed, undisturbed)
    for sentence in broken:
        click.echo(f"not so: {sentence}")
    if broken:
        context.exit(ExitCode.PROGRAM_FAILED)
    click.echo("4 of 4 workers died, and the bytes are the same.")
