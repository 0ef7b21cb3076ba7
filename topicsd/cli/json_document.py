"""One JSON document on stdout, indented so that a person can read it too."""

from __future__ import annotations

import sys

import msgspec


def write_json(document: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n")
