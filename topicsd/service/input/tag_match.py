"""The match of records by tag: `"X"`, `["tag","Eq","X"]` or `["tag","Glob","X*"]`."""

from __future__ import annotations

from typing import NamedTuple

from shared.contract.errors import Refusal, invalid
from shared.text.message import quoted


class TagMatch(NamedTuple):
    tag: str
    is_prefix: bool


def parse_match(field: str, match: str | list[str]) -> TagMatch | Refusal:
    """Parse a match of the given field.

    >>> parse_match("filter", ["tag", "Glob", "new.*"])
    TagMatch(tag='new.', is_prefix=True)
    """
    if isinstance(match, str):
        if match.endswith("*"):
            # Taken literally it would match nothing, which looks like success.
            rule = (
                f'must not end with *; send ["tag","Glob",{quoted(match)}] for a prefix'
                f' or ["tag","Eq",{quoted(match)}] for this tag'
            )
            return invalid(field, rule)
        return TagMatch(match, is_prefix=False)
    if len(match) == 3 and match[0] == "tag":
        if match[1] == "Eq":
            return TagMatch(match[2], is_prefix=False)
        if match[1] == "Glob" and match[2].endswith("*") and "*" not in match[2][:-1]:
            return TagMatch(match[2][:-1], is_prefix=True)
    rule = 'must be a tag, ["tag","Eq","new.1"] or ["tag","Glob","new.*"] with one * at its end'
    return invalid(field, rule)
