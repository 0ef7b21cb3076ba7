"""One request to a running server, and its refusal as a sentence."""

from __future__ import annotations

import argparse
import os
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from shared.settings.settings import Settings
from topicsd.offline.command_error import CommandError

KEY_VARIABLE: Final = "TOPICS_API_KEY"
TIMEOUT_SECONDS: Final = 600.0
"""Long: a server answers when a checkpoint and the copy of a whole topic are done."""


class ServerRefused(CommandError):
    """The server refused the request."""

    def __init__(self, sentence: str, code: str, detail: dict[str, Any]) -> None:
        super().__init__(sentence)
        self.code = code
        self.detail = detail


class NoResponse(CommandError):
    """The server was not reached."""


def add_server_arguments(parser: argparse.ArgumentParser, *, is_action: bool = False) -> None:
    """Add the options that name the server, and the form of the output.

    With `is_action` the command has them too, and the values given to it stay.
    """
    url = f"http://127.0.0.1:{Settings().port}"
    parser.add_argument(
        "--url",
        default=argparse.SUPPRESS if is_action else url,
        help=f"the server (default: {url}); {KEY_VARIABLE} holds its API key",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if is_action else False,
        help="print the response of the server",
    )


def ask_topic(url: str, method: str, topic: str, action: str, body: object = None) -> dict[str, Any]:
    """Make a request for a topic and return the response; raise CommandError for any other than 2xx."""
    return ask_server(url, method, f"/v0/topics/{quote(topic, safe='')}{action}", body)


def ask_server(url: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Make a request and return the response; raise CommandError for any other than 2xx."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise CommandError(f"--url: must begin with http:// or https://, got {url}")
    fields = {"content-type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE, ""):
        fields["authorization"] = f"Bearer {key}"
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(f"{url.rstrip('/')}{path}", data, fields, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=dict[str, Any])
    except urllib.error.HTTPError as error:
        raise _refusal(error.code, error.read()) from None
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        cause = reason.strerror if isinstance(reason, OSError) else None
        raise NoResponse(f"no response from {url}: {cause or reason}") from None


def _refusal(status: int, body: bytes) -> ServerRefused:
    try:
        error = msgspec.json.decode(body)["error"]
        return ServerRefused(str(error["message"]), str(error["code"]), error.get("detail") or {})
    except (msgspec.DecodeError, KeyError, TypeError):
        return ServerRefused(f"the server answered with status {status}", "", {})
