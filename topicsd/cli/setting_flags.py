"""The settings on a command line: one flag for each, and the file named by `--config`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from shared.settings.setting import SettingField, render_bounds, show_value
from shared.settings.settings import DECLARED
from shared.settings.sources import (
    CONFIG_FLAG,
    CONFIG_VARIABLE,
    ConfigFile,
    Resolved,
    SettingsError,
    load_settings,
)
from shared.text.message import size_text
from topicsd.offline.command_error import CommandError

CONFIG_BYTES_MAX: Final = 1 << 20

# The prefix keeps the destination of a setting's flag apart from a command's own arguments.
_PREFIX: Final = "setting_"


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    # An abbreviated flag would change its meaning when a new setting begins with the same letters.
    parser.allow_abbrev = False
    parser.usage = f"{parser.prog} [--config FILE] [--SETTING VALUE ...]"
    group = parser.add_argument_group(
        "settings",
        "Each is also a variable (--data-dir is TOPICS_DATA_DIR) and a key of the file (data_dir). "
        "A flag overrides the variable, and the variable overrides the file.",
    )
    group.add_argument(
        CONFIG_FLAG,
        metavar="FILE",
        help=f"a TOML file with settings (or {CONFIG_VARIABLE}); no default",
    )
    for field in DECLARED:
        if field.kind is bool:
            group.add_argument(
                field.flag,
                dest=_PREFIX + field.name,
                nargs="?",
                const="true",
                metavar="true",
                help=_help(field),
            )
        else:
            metavar = field.setting.unit.upper()
            group.add_argument(field.flag, dest=_PREFIX + field.name, metavar=metavar, help=_help(field))


def resolved_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Resolved:
    """Return the settings of a command line and its environment; CommandError lists all errors."""
    flags = {
        field.name: text for field in DECLARED if (text := getattr(args, _PREFIX + field.name)) is not None
    }
    path = config_path(args, environ)
    source = CONFIG_FLAG if args.config is not None else CONFIG_VARIABLE
    try:
        return load_settings(flags, environ, None if path is None else _read(source, path))
    except SettingsError as error:
        if len(error.problems) == 1:
            raise CommandError(str(error)) from None
        problems = str(error).replace("\n", "\n  ")
        raise CommandError(f"{len(error.problems)} settings are invalid:\n  {problems}") from None


def config_path(args: argparse.Namespace, environ: Mapping[str, str]) -> str | None:
    """Return the path of the configuration file from the flag, else from the variable, or None."""
    path: str = environ.get(CONFIG_VARIABLE, "") if args.config is None else args.config
    return path or None


def _read(source: str, path: str) -> ConfigFile:
    try:
        with open(path, "rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise CommandError(f"{source}={path!r}: cannot be read: {error.strerror}") from None
    if len(text) > CONFIG_BYTES_MAX:
        raise CommandError(f"{path}: must be at most {size_text(CONFIG_BYTES_MAX)}")
    try:
        return ConfigFile(path, text.decode())
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: is not valid TOML: {error}") from None


def _help(field: SettingField) -> str:
    bounds = "" if field.kind is str else render_bounds(field)
    default = show_value(field, field.default) or "none"
    text = f"{field.setting.help} ({bounds}; {default})" if bounds else f"{field.setting.help} ({default})"
    return text.replace("%", "%%")
