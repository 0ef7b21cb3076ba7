"""Checks of a job before Spark is started, which takes seconds.

They also run before anything is recorded: a replay notes its target in its book.
"""

from __future__ import annotations

import os
from argparse import Namespace

from shared.contract.names import TOPIC_NAME_RULE, is_topic_name
from spark.errors import SourceError
from spark.jobs.command_line import source_options
from spark.jobs.job_source import where_options
from spark.source.read_options import parse_options, server_url
from spark.view.server_client import ServerClient, ServerRefusal
from spark.view.shard_view import open_directory

# Longer than a restart of a server takes; the tasks of a job retry for longer.
PATIENCE_S = 10.0


def check(given: Namespace) -> None:
    """Raise SourceError if the job cannot succeed."""
    if given.command != "replay":
        _check_source(given)
    for url in {given.url, getattr(given, "to_url", None)} - {None}:
        _check_answers(server_url(url))
    if given.command in ("replay", "compact"):
        _check_names(given)
    picture = getattr(given, "png", None)
    if picture and not os.access(os.path.dirname(os.path.abspath(picture)), os.W_OK):
        raise SourceError(f"--png: {picture} cannot be written; its folder has to be there")


def _check_source(given: Namespace) -> None:
    options = source_options(given)
    read = parse_options(options, is_stream=True)
    for flag, where in (("--from", given.begin), ("--to", given.end)):
        try:
            parse_options({**options, **where_options(where)}, is_stream=True)
        except SourceError as error:
            raise SourceError(f"{flag}: {error}") from None
    if read.path:
        open_directory(read.path, read.cold_dir)


def _check_names(given: Namespace) -> None:
    for flag, text, behind in (("--into", given.into, ""), ("--prefix", given.prefix, "x")):
        if text and not is_topic_name(text + behind):
            raise SourceError(
                f"{flag}: {text!r} is not how a topic may be named; names match {TOPIC_NAME_RULE}"
            )


def _check_answers(url: str) -> None:
    with ServerClient(url, "", PATIENCE_S) as client:
        try:
            client.ask("GET", "ready")
        except ServerRefusal:
            return  # The server responds; the job itself reports its refusals better.
