"""The command line of a job, made of values by the names of flags or of fields."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.runtime.batch.schedulers import find_allocation, options_of
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import OPTIONS
from holdfast.runtime.options.option import RUN
from holdfast.runtime.options.sources import (
    CONFIG_FILE,
    BuiltOptions,
    Sources,
    build_options,
    read_config_file,
)
from holdfast.runtime.system.own_process import module_command

_FLAGS = {
    flag.lstrip("-").replace("-", "_"): name
    for name, option in OPTIONS.items()
    if RUN in option.commands
    for flag in option.flags
}
"""The field behind each name that an option has on the command line."""


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names of their fields; None is an option that is not given.

    Raises:
        UsageError: there is no such option.
    """
    for name in options:
        if name not in _FLAGS:
            near = difflib.get_close_matches(name, _FLAGS, 1)
            hint = f"did you mean {near[0]}?" if near else "`holdfast run --help` lists them"
            raise UsageError(f"launch() has no option {name!r}; {hint}")
    return {_FLAGS[name]: value for name, value in options.items() if value is not None}


def checked(script: Path, argv: tuple[str, ...], given: Mapping[str, Any]) -> BuiltOptions:
    """Build the options of the job here, so that an error of theirs is raised here."""
    allocation = options_of(find_allocation(os.environ))
    table = read_config_file(Path(CONFIG_FILE)).get(RUN, {})
    sources = Sources(given, os.environ, table, Path.cwd(), allocation=allocation)
    return build_options(script, argv, sources)


def command_of(script: Path, argv: tuple[str, ...], given: Mapping[str, Any]) -> list[str]:
    """Return the command line of a job with these options, by field."""
    line = [*module_command("holdfast", RUN)]
    for name, value in given.items():
        option = OPTIONS[name]
        if option.is_switch:
            off = [option.off_flag] if option.off_flag else []
            line += [option.flags[-1]] if option.read(value) else off
            continue
        several = value if option.is_repeated and not isinstance(value, str) else [value]
        for one in several:
            words = one if isinstance(one, (list, tuple)) else [one]
            joined = words if option.words > 1 else [",".join(map(str, words))]
            line += [option.flags[-1], *map(str, joined)]
    return [*line, "--", str(script), *argv]
