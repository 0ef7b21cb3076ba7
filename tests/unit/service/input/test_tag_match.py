"""Matches of requests: the JSON form, the form in a query, and what is refused."""

from __future__ import annotations

import fnmatch
from random import Random
from typing import Any

import pytest

from shared.contract.errors import Refusal
from shared.contract.tag_filter import TagFilter
from topicsd.service.input.tag_match import (
    BYTES_MAX,
    GLOB_BYTES_MAX,
    PARTS_MAX,
    parse_match,
    parse_match_query,
    parse_one_match,
)

FORMS: list[tuple[Any, TagFilter]] = [
    ("a", TagFilter(frozenset(["a"]))),
    (["tag", "Eq", "a*"], TagFilter(frozenset(["a*"]))),
    (["tag", "In", ["b", "a", "b"]], TagFilter(frozenset(["a", "b"]))),
    (["tag", "Glob", "a*"], TagFilter(prefixes=("a",))),
    (["tag", "Glob", "a**"], TagFilter(prefixes=("a",))),
    (["tag", "Glob", "*"], TagFilter(prefixes=("",))),
    (["tag", "Glob", "a?"], TagFilter(globs=("a?",))),
    (
        ["any", *(["tag", "Glob", f"{tag}*"] for tag in ("ab", "b", "a", "ac"))],
        TagFilter(prefixes=("a", "b")),
    ),
    (["tag", "Glob", "*a**b?"], TagFilter(globs=("*a*b?",))),
    (["any", "a", ["tag", "In", ["b"]], ["tag", "Glob", "c*"]], TagFilter(frozenset(["a", "b"]), ("c",))),
]
REFUSED: list[tuple[Any, str]] = [
    ("a*", "match: must not end with *"),
    ([], "match: must be a tag, "),
    (["any"], "match: must be a tag, "),
    (["tag", "Eq", ["a"]], "match: must be a tag, "),
    (["tag", "In", []], "match: must be a tag, "),
    (["tag", "In", "a"], "match: must be a tag, "),
    (["tag", "In", ["a", ["b"]]], "match: must be a tag, "),
    (["tag", "Glob", "a"], "match: must be a tag, "),
    (["node", "Eq", "a"], "match: must be a tag, "),
    (["any", "a", ["tag", "Like", "b"]], "match[2]: must be a tag, "),
    (["any", ["any", "a"]], "match[1]: must be a tag, "),
    (
        ["tag", "In", [str(number) for number in range(PARTS_MAX + 1)]],
        f"match: must have at most {PARTS_MAX} tags",
    ),
    (["any", *(["tag", "Glob", f"?{one}"] for one in range(17))], "match: must have at most 16 patterns"),
    ("a" * (BYTES_MAX + 1), f"match: must be at most {BYTES_MAX} bytes, got {BYTES_MAX + 1}"),
    (
        ["tag", "Glob", "*" + "a" * GLOB_BYTES_MAX],
        f"match: patterns besides prefixes must be at most {GLOB_BYTES_MAX} bytes together",
    ),
    (["any", "a", ["tag", "Glob", "b\0*"]], "match: must not contain a NUL"),
    ("", "match: must not have an empty tag"),
]


@pytest.mark.parametrize(("match", "expected"), FORMS)
def test_each_form_is_parsed(match: Any, expected: TagFilter) -> None:
    assert parse_match("match", match) == expected


@pytest.mark.parametrize(("match", "message"), REFUSED)
def test_a_wrong_match_is_refused_with_its_place(match: Any, message: str) -> None:
    refusal = parse_match("match", match)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", TagFilter(frozenset(["a"]))),
        ("a,b,new.*", TagFilter(frozenset(["a", "b"]), ("new.",))),
        ("a?c", TagFilter(globs=("a?c",))),
        ('["tag","Eq","a,b*"]', TagFilter(frozenset(["a,b*"]))),
        ('"a,b"', TagFilter(frozenset(["a,b"]))),
    ],
)
def test_a_match_in_a_query_is_a_list_or_json(text: str, expected: TagFilter) -> None:
    assert parse_match_query("match", text) == expected


@pytest.mark.parametrize("text", ["", "a,", ",", "[", '["tag"', '"a', '["tag","Eq",5]', "[" * 10_000])
def test_a_wrong_match_in_a_query_is_refused(text: str) -> None:
    refusal = parse_match_query("match", text)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith("match: must ")


@pytest.mark.parametrize(
    "match", [["tag", "Glob", "a?"], ["any", "a", "b"], ["tag", "In", ["a", "b"]], ["tag", "Like", "a"]]
)
def test_a_delete_takes_one_tag_or_one_prefix(match: Any) -> None:
    refusal = parse_one_match("match", match)
    assert isinstance(refusal, Refusal)
    assert refusal.message.endswith('["tag","Eq","new.1"] or ["tag","Glob","new.*"] with one * at its end')


def test_globs_select_what_fnmatch_selects() -> None:
    random = Random(17)
    for _ in range(20_000):
        glob = "".join(random.choices("ab*?", k=random.randint(1, 8)))
        tag = "".join(random.choices("abä\n", k=random.randint(1, 8)))
        match = parse_match_query("match", glob)
        assert isinstance(match, TagFilter)
        assert match.selects(tag) == fnmatch.fnmatchcase(tag, glob), (glob, tag)


def test_a_hostile_glob_takes_no_long_search() -> None:
    match = parse_match_query("match", "*a" * (GLOB_BYTES_MAX // 2 - 2) + "*b?")
    assert isinstance(match, TagFilter)
    assert not match.selects("a" * 60_000)
