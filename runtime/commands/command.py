"""What commands have in common: examples in the help, RUN_DIR, and flags of a job.

click's own formatter writes the help: plain text at any width, that a pipe and a search can read.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.runtime.errors import UsageError
from holdfast.runtime.head.screen import say
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import RUN, Option, read_path
from holdfast.runtime.options.sources import OF_SCRIPTS_TOO, REMOVED, removal_of
from holdfast.runtime.run.find_run import the_run_here
from holdfast.runtime.run.place_url import PlacePath, is_url, read_url
from holdfast.runtime.run.run_directory import RunDirectory

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DEFAULTS = {name: field.default for name, field in JobOptions.__dataclass_fields__.items()}


class Documented(click.Command):
    """A command whose help has options in groups, and examples, which a test parses."""

    def __init__(self, *args: Any, examples: tuple[str, ...], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of a job under the names of their groups, and all others after them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                option = OPTIONS.get(parameter.name or "")
                is_of_a_job = option is not None and self.name in option.commands
                groups.setdefault(option.group if option and is_of_a_job else "", []).append(line)
        rest = groups.pop("", [])
        for title, lines in groups.items():
            with formatter.section(title):
                formatter.write_dl(lines)
        with formatter.section("Other options" if groups else "Options"):
            formatter.write_dl(rest)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and then what else there is to say."""
        with formatter.section("Examples"):
            for example in self.examples:  # as it is: a line that is broken cannot be copied
                formatter.write(f"{'':{formatter.current_indent}}holdfast {example}\n")
        super().format_epilog(ctx, formatter)


_OF_PLACES = {("inspect", "run_dir"), ("verify", "run_dir"), ("list", "directory")} | {
    ("repair", "other_dir")
}
"""Commands, and their paths, that may be the URL of a place of copies."""


class _AnyPath(click.Path):
    """A path as `read_path` takes it: the shell leaves ``--to=~/w.npz`` as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raises ``click.BadParameter`` for what is none."""
        try:
            if is_url(value):
                place = PlacePath(read_url(value))
                if param and ctx and (ctx.command.name, param.name) in _OF_PLACES:
                    return place
                raise ValueError(
                    f"{place} is a place of copies, which inspect, verify, list and repair --from "
                    "read; give the directory of a run here"
                )
            return super().convert(read_path(value), param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)


PATH = _AnyPath(path_type=Path)

_EPILOG = (
    "Options stand before SCRIPT; what follows SCRIPT goes to the script.  `--` before SCRIPT says "
    "so where a word of the script's reads like an option.  "
    "Each option may also stand in the environment (HOLDFAST_SAVE_EVERY for --save-every) or in "
    "holdfast.toml under [run].  A flag comes first, then the variable, then the file."
)


def _argument(*, or_living: bool) -> Callable[[_Command], _Command]:
    def run_here(context: click.Context, _: click.Parameter, given: Path | None) -> Path:
        """Return the run that is named, or the one that is here, and say which that is."""
        if given is not None or context.resilient_parsing:
            return given or Path()
        found = the_run_here(context.command_path, _lives, or_living=or_living)
        say(f"the run here is {found}")
        return found

    return click.argument("run_dir", type=PATH, required=False, callback=run_here)


def _lives(run: Path) -> bool:
    from holdfast.runtime.head.living_job import LIVES, life_of  # `holdfast run` needs neither

    return life_of(RunDirectory(run.absolute())) in LIVES


run_dir_argument = _argument(or_living=False)
"""The argument RUN_DIR; without it a command takes the run of the working directory."""

living_run_argument = _argument(or_living=True)
"""The same, but of several runs here a command takes the one that lives, if only one does."""

timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    metavar="SECONDS",
    help="Give up after this long.",
)

_QUOTED = r"""["']{}["']"""


def flags_of(command: str) -> Callable[[_Command], _Command]:
    """Return a decorator that gives a command its flags."""

    def decorate(function: _Command) -> _Command:
        for name, option in reversed(list(OPTIONS.items())):
            if option.flags and command in option.commands:
                function = _flag(name, option)(function)
        return function

    return decorate


def given_flags(context: click.Context) -> dict[str, Any]:
    """Return the values that stand on the command line, by field of the options."""
    return {
        name: value
        for name, value in context.params.items()
        if name in OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


class OfScript(Documented):
    """A command whose last words belong to a script, which knows some of them by our names."""

    allow_interspersed_args = False

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, epilog=_EPILOG, **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option of ours behind a script that does not name it, but for ``--``."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        argv: tuple[str, ...] = ctx.params["argv"] or ()
        ours = words[: len(words) - len(argv)]
        if argv and "--" not in ours and not ctx.resilient_parsing:
            stray, others = stray_words(ctx.params["script"], argv)
            if stray:
                at = len(ours) + 1 - sum(isinstance(each, click.Argument) for each in self.params)
                script, meant = ctx.params["script"], shlex.join(stray)
                before = shlex.join([*stray, *ours, *others])
                behind = shlex.join([*ours[:at], "--", *ours[at:], *argv])
                for removal in filter(None, (removal_of(w.partition("=")[0]) for w in stray)):
                    raise UsageError(
                        f"{removal}; if it is meant for {script.name}, put -- before: "
                        f"`{ctx.command_path} {behind}`"
                    )
                raise UsageError(
                    f"{meant} stands behind {script.name}, which does not name it; if it is meant "
                    f"for holdfast, put it before: `{ctx.command_path} {before}`; if it is meant "
                    f"for {script.name}, put -- before: `{ctx.command_path} {behind}`"
                )
        return rest


def stray_words(script: Path, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of a script that are options of ours and not its own, and all others.

    An option of ours may be one that was removed.
    """
    from holdfast.runtime.run.program import Program  # few commands ask

    values = dict.fromkeys((flag for flag in REMOVED if flag not in OF_SCRIPTS_TOO), 1)
    for option in OPTIONS.values():
        if RUN in option.commands:
            flags = (*option.flags, option.off_flag or "")
            values |= dict.fromkeys(flags, 0 if option.is_switch else option.words)
    known = {flag: count for flag, count in values.items() if flag.startswith("-")}
    is_asked = any(word.partition("=")[0] in known for word in argv)
    texts = tuple(Program.of(script).texts.values()) if is_asked else ()
    text = b"\n".join(texts).decode(errors="replace")
    stray: list[str] = []
    others: list[str] = []
    words = list(argv)
    while words:
        flag, sign, _ = words[0].partition("=")
        is_stray = bool(texts) and flag in known and not _names(text, flag)
        length = 1 + (known[flag] if is_stray and not sign else 0)
        (stray if is_stray else others).extend(words[:length])
        del words[:length]
    return stray, others


def _names(text: str, flag: str) -> bool:
    """Return whether a script's text has the name of a flag: in quotes if it has one dash."""
    if not flag.startswith("--"):
        return re.search(_QUOTED.format(flag), text) is not None
    name = flag.removeprefix("--").replace("-", "[-_]")
    return re.search(rf"\b{name}\b", text) is not None


def _flag(name: str, option: Option) -> Callable[[_Command], _Command]:
    flag, text = option.flags[-1], _help(name, option)
    names = (*option.flags[:-1], f"{flag}/{option.off_flag}" if option.off_flag else flag, name)
    if option.is_switch:
        return click.option(*names, is_flag=True, default=None, help=text)
    return click.option(
        *names,
        type=click.UNPROCESSED,
        multiple=option.is_repeated,
        nargs=option.words,
        allow_from_autoenv=False,  # `build_options` reads the environment
        metavar=option.metavar,
        help=text,
    )


def _help(name: str, option: Option) -> str:
    """Return the help of an option with its default, unless that says nothing."""
    value, default = _DEFAULTS[name], option.default_text or ""
    if default or value is None:
        pass
    elif option.off_flag is not None:
        default = option.flags[-1].lstrip("-")
    elif not isinstance(value, bool):
        default = ",".join(value) if isinstance(value, tuple) else str(value)
    return f"{option.help}  [default: {default}]" if default else option.help
