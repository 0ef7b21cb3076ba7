"""The match of records by tag, as requests have it in JSON or in a query.

    "new.1"                          this tag
    ["tag","Eq","new.1"]             this tag
    ["tag","In",["new.1","new.2"]]   any of these tags
    ["tag","Glob","new.*"]           a pattern: `*` is any text, `?` is one character
    ["any", M, M]                    any of these matches

In a query, `match=new.*` is a pattern, `match=new.1` a tag, commas separate several, and a value that begins
with `[` or `"` is JSON.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import Refusal, invalid
from shared.contract.tag_filter import TagFilter
from shared.text.message import quoted

SentMatch = str | list[str | list[str | list[str]]]
"""The JSON form. It is not nested deeper than `["any", ["tag","In",["new.1"]]]`."""

PARTS_MAX: Final = 256
# Every tag is compared with them, while tags and prefixes are looked up.
GLOBS_MAX: Final = 16
GLOB_BYTES_MAX: Final = 256
BYTES_MAX: Final = 64 << 10

_decode: Final = msgspec.json.Decoder(SentMatch).decode
_RULE: Final = (
    'must be a tag, ["tag","Eq","new.1"], ["tag","In",["new.1","new.2"]], ["tag","Glob","new.*"]'
    ' or ["any",…] of these'
)
_ONE_RULE: Final = 'must be a tag, ["tag","Eq","new.1"] or ["tag","Glob","new.*"] with one * at its end'


class TagMatch(NamedTuple):
    """A filter of one tag or one prefix."""

    tag: str
    is_prefix: bool


def parse_one_match(field: str, match: SentMatch) -> TagMatch | Refusal:
    """Parse a match of the given field, which must be one tag or one prefix.

    >>> parse_one_match("filter", ["tag", "Glob", "new.*"])
    TagMatch(tag='new.', is_prefix=True)
    """
    tag_filter = parse_match(field, match, _ONE_RULE)
    if isinstance(tag_filter, Refusal):
        return tag_filter
    tags, prefixes = [*tag_filter.tags], tag_filter.prefixes
    if tag_filter.globs or len(tags) + len(prefixes) != 1:
        return invalid(field, _ONE_RULE)
    return TagMatch(tags[0], is_prefix=False) if tags else TagMatch(prefixes[0], is_prefix=True)


def parse_match(field: str, match: SentMatch, rule: str = _RULE) -> TagFilter | Refusal:
    """Parse a match of the given field; `rule` is what a refusal says of its form.

    >>> parse_match("match", ["any", "paid", ["tag", "Glob", "new.*"], ["tag", "Glob", "*.e?"]])
    TagFilter(tags=frozenset({'paid'}), prefixes=('new.',), globs=('*.e?',))
    """
    parts = _Parts(rule)
    refusal = parts.add(field, match)
    return refusal or parts.filter(field)


def parse_match_query(field: str, text: str) -> TagFilter | Refusal:
    """Parse a match in a query.

    >>> parse_match_query("match", "new.*,paid")
    TagFilter(tags=frozenset({'paid'}), prefixes=('new.',), globs=())
    """
    if text.startswith(("[", '"')):
        try:
            return parse_match(field, _decode(text))
        except (msgspec.DecodeError, RecursionError):
            return invalid(field, _RULE)
    parts = _Parts(_RULE)
    for part in text.split(","):
        parts.add_glob(part) if _is_glob(part) else parts.tags.add(part)
    return parts.filter(field)


def _is_glob(text: str) -> bool:
    return "*" in text or "?" in text


class _Parts:
    """The parts of a filter that is being parsed."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self.tags: set[str] = set()
        self._prefixes: set[str] = set()
        self._globs: set[str] = set()

    def add(self, field: str, match: SentMatch) -> Refusal | None:
        if isinstance(match, str):
            if match.endswith("*"):
                # Taken literally it would match nothing, which looks like success.
                rule = (
                    f'must not end with *; send ["tag","Glob",{quoted(match)}] for a prefix'
                    f' or ["tag","Eq",{quoted(match)}] for this tag'
                )
                return invalid(field, rule)
            self.tags.add(match)
            return None
        if len(match) > 1 and match[0] == "any":
            for index, part in enumerate(match[1:], 1):
                refusal = invalid(f"{field}[{index}]", self._rule) if part[:1] == ["any"] else None
                refusal = refusal or self.add(f"{field}[{index}]", part)  # type: ignore[arg-type]
                if refusal is not None:
                    return refusal
            return None
        return None if self._add_test(match) else invalid(field, self._rule)

    def _add_test(self, match: list[str | list[str | list[str]]]) -> bool:
        """Add `["tag", operator, value]`; return False for anything else."""
        if len(match) != 3 or match[0] != "tag":
            return False
        _, operator, value = match
        if operator == "Eq" and isinstance(value, str):
            self.tags.add(value)
        elif operator == "In" and isinstance(value, list) and value:
            tags = [tag for tag in value if isinstance(tag, str)]
            self.tags.update(tags)
            return len(tags) == len(value)
        elif operator == "Glob" and isinstance(value, str) and _is_glob(value):
            self.add_glob(value)
        else:
            return False
        return True

    def add_glob(self, glob: str) -> None:
        glob = re.sub(r"\*+", "*", glob)
        if _is_glob(glob[:-1]) or glob[-1] == "?":
            self._globs.add(glob)
        else:
            self._prefixes.add(glob[:-1])

    def filter(self, field: str) -> TagFilter | Refusal:
        texts = [*self.tags, *self._prefixes, *self._globs]
        if len(texts) > PARTS_MAX:
            return invalid(
                field, f"must have at most {PARTS_MAX} tags and patterns, got {len(texts)}", PARTS_MAX
            )
        if len(self._globs) > GLOBS_MAX:
            rule = f"must have at most {GLOBS_MAX} patterns besides prefixes, got {len(self._globs)}"
            return invalid(field, rule, GLOBS_MAX)
        size = sum(len(glob.encode()) for glob in self._globs)
        if size > GLOB_BYTES_MAX:
            rule = f"patterns besides prefixes must be at most {GLOB_BYTES_MAX} bytes together, got {size}"
            return invalid(field, rule, GLOB_BYTES_MAX)
        size = sum(len(text.encode()) for text in texts)
        if size > BYTES_MAX:
            return invalid(field, f"must be at most {BYTES_MAX} bytes, got {size}", BYTES_MAX)
        if any("\0" in text for text in texts):
            return invalid(field, "must not contain a NUL character")
        if "" in self.tags:
            return invalid(field, "must not have an empty tag: it would match nothing")
        return TagFilter(frozenset(self.tags), _simplest(self._prefixes), tuple(sorted(self._globs)))


def _simplest(prefixes: set[str]) -> tuple[str, ...]:
    """Return the prefixes that no other one begins, sorted.

    >>> _simplest({"ab", "a", "b"})
    ('a', 'b')
    """
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return tuple(kept)
