"""``holdfast chaos``: strike a job from outside, and hold it against its undisturbed twin."""

from __future__ import annotations

import itertools
import os
import secrets
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import PATH, given_flags
from holdfast.runtime.cli.run import run
from holdfast.runtime.cli.terminal import grid, output
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.hosts.named_hosts import settle_hosts
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import Sources, build_options, check_script
from holdfast.runtime.tools.strike import (
    BLOWS,
    BLOWS_ON_HOSTS,
    Strike,
    Target,
    parse_blows,
    parse_plan,
)
from holdfast.runtime.tools.verdict import REPORT_NAME, ChaosTerms, Verdict, run_chaos, shares

_OURS = {"run_dir": "--run-dir", "fresh": "--fresh"}
_SETTLES = {"plan": ("mtbf", "seed", "count", "kinds"), "mtbf": ("count",)}
"""What an option decides, so that others beside it would be ignored."""


@click.command(
    cls=Documented,
    context_settings={"allow_interspersed_args": False, "show_default": True},
)
@click.option("--seed", type=click.IntRange(min=0), help="The seed of the plan.  [default: random]")
@click.option("--count", type=click.IntRange(min=0), default=3, help="So many strikes in all.")
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Strikes until the end, so far apart on average, instead of a count.",
)
@click.option("--plan", type=PATH, help="Strikes from a file, one a line, instead of a seed.")
@click.option(
    "--kinds",
    metavar="LIST",
    help='What may strike, as in "kill, stop agent, full stderr".  [default: all]',
)
@click.option("--out", type=PATH, help="A new directory.  [default: holdfast-chaos-SEED]")
@click.option(
    "--hang-after",
    type=click.FloatRange(min=0, min_open=True),
    default=1200.0,
    metavar="SECONDS",
    help="Without a new record in the journal for so long the run hangs.",
)
@click.argument("command", metavar="-- run [OPTIONS] SCRIPT [ARGS]...", nargs=-1, required=True)
@click.pass_context
def chaos(context: click.Context, /, command: tuple[str, ...], **options: Any) -> None:
    """Kill and stop parts of a job at random, and check that it still ends with the same bytes.

    Kills, stops and terminates any process of the job at moments that follow from a seed.
    Starts the job again as a batch system would.  Exits with 0 only if the run came to its end
    with the bytes of the undisturbed run, and left nothing behind.
    """
    given = _given(context, options)
    if options["seed"] is None:
        options["seed"] = secrets.randbelow(1 << 32)
    if "plan" not in given:
        given["seed"] = options["seed"]
    inner = _inner(context, command)
    check_script(inner.params["script"])
    terms = _terms(command[1:], options, _hosts(inner))
    # A signal to end must not leave a job behind that nobody follows.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(ExitCode.TERMINATED))
    verdict = run_chaos(terms, lambda text: click.echo(f"holdfast chaos: {text}", err=True))
    _print(verdict, output())
    click.echo(f"report  {terms.out / REPORT_NAME}")
    if not verdict.is_good:
        again = _line({**given, "out": None}, command)
        click.echo(f"replay  {shlex.join(['holdfast', *again])}")
        sys.exit(ExitCode.PROGRAM_FAILED)


def _given(context: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that stand on the command line; refuse those that do nothing."""
    typed = ParameterSource.COMMANDLINE
    given = {k: v for k, v in options.items() if context.get_parameter_source(k) is typed}
    for name, others in _SETTLES.items():
        for other in others:
            if name in given and other in given:
                raise UsageError(f"--{name} and --{other} both choose the strikes; give one")
    return given


def _inner(context: click.Context, command: tuple[str, ...]) -> click.Context:
    """Return what `run` was told; refuse what chaos itself decides."""
    if command[0] != "run":
        raise UsageError(f"after -- comes `run` with its options and script, not {command[0]!r}")
    inner = run.make_context("run", list(command[1:]), parent=context.parent)
    for name, flag in _OURS.items():
        if name in given_flags(inner):
            raise UsageError(
                f"leave out {flag}: chaos makes two run directories of its own in --out"
            )
    return inner


def _hosts(inner: click.Context) -> tuple[str, ...]:
    """Return the hosts of a job over several, the head's first; none if it has one."""
    tables = inner.find_object(dict) or {}
    sources = Sources(given_flags(inner), os.environ, tables.get(RUN, {}), Path.cwd())
    built = build_options(inner.params["script"], inner.params["argv"], sources)
    return tuple(host.name for host in settle_hosts(built.options))


def _terms(
    arguments: tuple[str, ...], options: dict[str, Any], hosts: tuple[str, ...]
) -> ChaosTerms:
    seed = options["seed"]
    blows = BLOWS_ON_HOSTS if hosts else BLOWS
    out = options["out"] or Path(f"holdfast-chaos-{seed}")
    return ChaosTerms(
        arguments=arguments,
        out=out.absolute(),
        seed=seed,
        blows=blows if options["kinds"] is None else parse_blows(options["kinds"], blows),
        count=options["count"],
        mtbf_s=options["mtbf"],
        strikes=None if options["plan"] is None else _plan(options["plan"], hosts),
        hang_after_s=options["hang_after"],
        hosts=hosts,
    )


def _plan(path: Path, hosts: tuple[str, ...]) -> tuple[Strike, ...]:
    """Return the strikes of a plan; refuse those on hosts that cannot be struck."""
    plan = parse_plan(_read(path))
    for strike in plan:
        is_of_host = strike.blow.target is Target.HOST
        if (is_of_host or strike.host) and not hosts:
            raise UsageError(f"'{strike}' names a host, and the job has one; give it --hosts")
        if strike.host and strike.host not in hosts[is_of_host:]:
            raise UsageError(
                f"'{strike}' names no host to be struck; there are {', '.join(hosts)}"
                + (f", but all of {hosts[0]} cannot be struck from there" if is_of_host else "")
            )
    return plan


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"the plan {path} cannot be read: {reason}") from error


def _print(verdict: Verdict, console: Console) -> None:
    console.print(_facts(verdict))
    for table in (_strikes(verdict), _recoveries(verdict), _buckets(verdict)):
        if table.row_count:
            console.print(table)
    if verdict.evidence:
        console.print(verdict.evidence, markup=False)


def _facts(verdict: Verdict) -> Table:
    table = grid()
    table.add_row("verdict", verdict.in_words)
    for complaint in verdict.complaints:
        table.add_row("", Text(complaint))
    runs = [(code, len(list(same))) for code, same in itertools.groupby(verdict.exit_codes)]
    codes = ", ".join(f"{code} ({times} times)" if times > 1 else f"{code}" for code, times in runs)
    table.add_row("exit codes", codes or "-")
    table.add_row("final sha256", verdict.sha256 or "-")
    for interruption in verdict.unexplained:
        table.add_row("unexplained", Text(interruption))
    table.add_row("speed", f"{verdict.speed:.1%} of the undisturbed twin")
    return table


def _strikes(verdict: Verdict) -> Table:
    table = Table("strike", "at", "step", "victim", "training again after")
    for told in verdict.strikes:
        victim = told.victim or "missed"
        again = _time(told.recovered_s, has_paused=told.has_paused)
        table.add_row(Text(told.strike), f"{told.at_s:.2f} s", str(told.step), Text(victim), again)
    return table


def _recoveries(verdict: Verdict) -> Table:
    table = Table("time to recover", "strikes", "recovered", "median", "99 %")
    for found in verdict.recoveries:
        counts = (str(found.strikes), str(found.recovered))
        times = (_time(t, has_paused=found.paused > 0) for t in (found.median_s, found.p99_s))
        table.add_row(found.blow, *counts, *times)
    return table


def _buckets(verdict: Verdict) -> Table:
    table = Table("wall time", "struck", "", "twin", "")
    twin = shares(verdict.twin_buckets)
    for name, (length, part) in shares(verdict.buckets).items():
        ours = (f"{length:.3f} s", f"{part:.1%}")
        table.add_row(name, *ours, f"{twin[name][0]:.3f} s", f"{twin[name][1]:.1%}")
    table.add_row("all", f"{verdict.wall_s:.3f} s", "", f"{verdict.twin_wall_s:.3f} s", "")
    return table


def _time(value: float | None, *, has_paused: bool) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if has_paused else "no pause"


def _line(options: dict[str, Any], command: tuple[str, ...]) -> list[str]:
    """Return the words of the command line that asks for the same again."""
    words = ["chaos"]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return [*words, "--", *command]
