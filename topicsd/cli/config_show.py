"""`topicsd config show`: the settings of a server, and the origin of each value.

The command resolves the settings as `topicsd serve` does, with the same flags, and starts nothing. For a
secret it shows only that it is set.
"""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from shared.settings.setting import Value, show_value
from shared.settings.settings import declared_values
from shared.settings.sources import Resolved
from topicsd.cli.command import Command
from topicsd.cli.setting_flags import add_setting_flags, resolved_settings
from topicsd.offline.command_error import EXIT_OK
from topicsd.offline.table import NOTHING, escape_unprintable, table


class ShownSetting(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: Value
    origin: str
    """`default`, the path of the file, the name of the variable or the flag."""
    variable: str
    flag: str


class ShownConfig(msgspec.Struct, frozen=True, kw_only=True):
    settings: list[ShownSetting]
    advice: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    parser.set_defaults(show_help=parser.print_help)
    show = actions.add_parser("show", help="show each setting with its value and origin")
    show.set_defaults(parser=show, show_help=None)
    add_setting_flags(show)
    show.add_argument("--json", action="store_true", help="print one JSON document")
    show.usage = f"{show.usage} [--json]"


def run(args: argparse.Namespace) -> int:
    if args.show_help is not None:
        args.show_help()
        return EXIT_OK
    resolved = resolved_settings(args, os.environ)
    if args.json:
        shown = shown_config(resolved)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode() + "\n")
        return EXIT_OK
    rows = [
        (
            field.name,
            escape_unprintable(show_value(field, value)) or NOTHING,
            escape_unprintable(resolved.origins[field.name]),
        )
        for field, value in declared_values(resolved.settings)
    ]
    print(*table(("SETTING", "VALUE", "ORIGIN"), rows, indent=0), sep="\n")
    for sentence in resolved.advice:
        print(f"topicsd: warning: {sentence}", file=sys.stderr)
    return EXIT_OK


def shown_config(resolved: Resolved) -> ShownConfig:
    return ShownConfig(
        settings=[
            ShownSetting(
                name=field.name,
                value=show_value(field, value) if field.setting.is_secret else value,
                origin=resolved.origins[field.name],
                variable=field.variable,
                flag=field.flag,
            )
            for field, value in declared_values(resolved.settings)
        ],
        advice=resolved.advice,
    )


COMMAND = Command(
    name="config",
    summary="show the settings and the origin of each",
    description="Show the settings that the server would use, and the origin of each value.",
    example="  topicsd config show\n  topicsd config show --config topicsd.toml --port 0 --json",
    add_arguments=add_arguments,
    run=run,
    exit_codes="exit codes: 0 the settings are valid, 2 they are not; the errors are on stderr",
)
