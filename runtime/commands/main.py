"""The ``holdfast`` command: how it finds its subcommands, and how every error leaves it."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, TextIO

import click

from holdfast.checkpoint.errors import (
    TRANSIENT,
    CheckpointError,
    CheckpointUnreadable,
    StorageFailed,
)
from holdfast.runtime.commands.command import Documented
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.head.screen import say
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import (
    CONFIG_FILE,
    keys_of,
    mistyped_variables,
    nearest,
    read_config_file,
    refuse_unknown,
    removal_of,
)
from holdfast.runtime.system.signals import write_in_background

_LONGEST_SUMMARY = 200
"""Letters: more than the first sentence on any command has."""

_GROUPS = {
    "Run": {"run": "run", "attach": "orders", "stop": "orders", "scale": "orders", "demo": "demo"},
    "Look": {"status": "status", "logs": "logs", "report": "report", "list": "status"},
    "Checkpoints": {
        **{"save": "orders", "inspect": "inspect", "verify": "checkpoints"},
        **{"repair": "checkpoints", "export": "export"},
    },
    "Trouble": {"doctor": "doctor"},
}
"""What the commands are for, and the module of each, in the order of the help."""

_HOMES = {name: home for group in _GROUPS.values() for name, home in group.items()}

_OF_JOBS = ("run", "attach")
"""Commands that have a job to mind, which a terminal may not stop."""


class _Commands(click.Group):
    """The subcommands: the module of each is imported when it is asked for.

    Together they take 0.2 s, and some load NumPy: a job begins without them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, for the help."""
        return sorted(_HOMES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence on each command in full, by groups; click cuts it to a line."""
        width = max(map(len, _HOMES))
        for title, group in all_commands().items():
            with formatter.section(title):
                texts = [one.get_short_help_str(_LONGEST_SUMMARY) for one in group]
                names = [f"{one.name:{width}}" for one in group]
                formatter.write_dl([*zip(names, texts, strict=True)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is asked for; say what may be meant by another word."""
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            if word.endswith(".py") or os.path.isfile(word):
                hint = f"did you mean `holdfast run {word}`?"
            else:
                names, otherwise = self.list_commands(ctx), "`holdfast --help` lists them"
                hint = nearest(word, names, otherwise, form="`holdfast {}`")
            raise UsageError(removal_of(word) or f"no such command {word!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Documented | None:
        """Return a subcommand by its name, None if there is none."""
        if cmd_name not in _HOMES:
            return None
        found = vars(importlib.import_module(f"{__package__}.{_HOMES[cmd_name]}")).values()
        return next(one for one in found if isinstance(one, Documented) and one.name == cmd_name)


def all_commands() -> dict[str, list[Documented]]:
    """Import all commands, and return them by what they are for, in the order of the help."""
    context = click.Context(holdfast)
    return {
        title: [one for name in group if (one := holdfast.get_command(context, name))]
        for title, group in _GROUPS.items()
    }


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="holdfast-mpi")
@click.pass_context
def holdfast(context: click.Context) -> None:
    """Train through worker deaths: whatever dies, the run ends with the same bytes."""
    if context.invoked_subcommand in _OF_JOBS:
        write_in_background()
    for sentence in mistyped_variables(os.environ):
        say(sentence)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(ExitCode.USAGE)
    # Options of a job are taken from the tables by `sources`, those of other commands by click.
    context.obj = _options_from_file(context, Path(CONFIG_FILE))
    context.default_map = {}
    for name, table in context.obj.items():
        if name != RUN and (command := holdfast.get_command(context, name)):
            names = _parameters(command)
            values = {names.get(key, key): value for key, value in table.items()}
            context.default_map[name] = values


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit; an error becomes one line and its exit code."""
    _open_closed_streams()
    try:
        sys.exit(_exit_code_of(argv))
    finally:
        _forget_unwritable(sys.stdout)
        _forget_unwritable(sys.stderr)


def _open_closed_streams() -> None:
    """Give closed standard streams a place, before another file gets their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # as Python has found it
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _exit_code_of(argv: list[str] | None) -> int:
    try:
        result = holdfast.main(args=argv, prog_name="holdfast", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except JobError as error:
        return _fail(str(error), error.exit_code)
    except CheckpointError as error:
        is_call = isinstance(error, StorageFailed) and error.errno in TRANSIENT
        is_unread = is_call or isinstance(error, CheckpointUnreadable)  # just now
        return _fail(str(error), ExitCode.STOPPED_EARLY if is_unread else ExitCode.PROGRAM_FAILED)
    except click.ClickException as error:
        return _fail(_message_of(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ExitCode.INTERRUPTED)
    except OSError:
        # Was it stdout?  A stream without a buffer remembers no failure, so write once more.
        failure = _forget_unwritable(sys.stdout, "\n")
        if failure is None:
            raise
        text = f"stdout takes nothing: {failure.strerror}; send the output to another place"
        has_no_reader = isinstance(failure, BrokenPipeError)  # as with `head`: nobody would hear it
        return ExitCode.PROGRAM_FAILED if has_no_reader else _fail(text, ExitCode.PROGRAM_FAILED)
    return result if isinstance(result, int) else ExitCode.DONE


def _message_of(error: click.ClickException) -> str:
    """Return what is wrong, and what may be meant or where to read on."""
    message = error.format_message()
    surplus = re.fullmatch(r"Got unexpected extra argument \((\d+)\)", message)
    if surplus is not None and isinstance(error, click.UsageError) and error.ctx is not None:
        known = [flag for option in error.ctx.command.params for flag in option.opts]
        for flag in set(known) & {"--step", "--worker"}:
            return f"{surplus[1]} is no run; a {flag.strip('-')} is given as {flag} {surplus[1]}"
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        otherwise = f"see `{error.ctx.command_path} --help`"
        hint = nearest(error.option_name, error.possibilities or (), otherwise)
        return removal_of(error.option_name) or f"no such option {error.option_name}; {hint}"
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        return f"{message.rstrip('.')}; see `{error.ctx.command_path} --help`"
    return message


def _options_from_file(context: click.Context, path: Path) -> dict[str, dict[str, Any]]:
    """Return the options that a file sets, each of which a command must know."""
    tables = read_config_file(path)
    for name, table in tables.items():
        command = holdfast.get_command(context, name)
        if command is None:
            commands = ", ".join(holdfast.list_commands(context))
            reason = removal_of(name) or f"there is no such command; commands are {commands}"
            raise UsageError(f"{path} has a heading [{name}], but {reason}")
        if name == context.invoked_subcommand:  # a slip in one table stops no other command
            known = keys_of(name) if name == RUN else sorted(_parameters(command))
            refuse_unknown(path, name, table, known)
    return tables


def _parameters(command: click.Command) -> dict[str, str]:
    """Return the parameters of a command by the names that a user types."""
    return {
        max(parameter.opts, key=len).lstrip("-").replace("-", "_"): parameter.name
        for parameter in command.params
        if parameter.name
    }


def _fail(sentence: str, exit_code: int) -> int:
    one_line = " ".join(sentence.split())
    with contextlib.suppress(OSError):  # the exit code tells where stderr takes nothing
        click.echo(f"holdfast: error: {one_line}", err=True)
    return exit_code


def _forget_unwritable(stream: TextIO | None, text: str = "") -> OSError | None:
    """Write ``text``; drop what the stream does not take, and return why it does not.

    Python would write it again at its end, and exit with 120.
    """
    if stream is None:
        return None
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None
