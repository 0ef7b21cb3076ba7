"""The output of one JSON document on stdout, indented for human readers."""

from __future__ import annotations

import sys

import msgspec


def write_json(document: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
