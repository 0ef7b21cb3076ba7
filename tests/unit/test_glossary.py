from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit import glossary_rules
from tests.unit.glossary_rules import GLOSSARY, RENOVATED, RETIRED_WORDS, RULES, Rule, retired_words
from tests.unit.house_rules import FOLDERS

PROJECT = Path(__file__).parents[2]

SMALL_GLOSSARY = """# Glossary

| chunk | the result of a read | `piece` |
"""
# A word, a phrase with a frozen name, an identifier.
TABLE = """# Retired words

A `piece` may be named here.

| retired word | use instead | frozen names |
|---|---|---|
| `piece` | chunk | |
| `fast lane` | HTTP/1.1 connection | |
| `forwarded` | remote request | `forwarded_total` |
| `Place` | Position | |
"""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_renovated_folders_follow_the_glossary(rule: Rule) -> None:
    assert rule(PROJECT, RENOVATED) == []


def test_every_renovated_folder_exists_and_is_known() -> None:
    assert all((PROJECT / folder).exists() for folder in RENOVATED)
    assert all(folder.split("/")[0] in FOLDERS or "." in folder for folder in RENOVATED)


def test_no_term_of_the_glossary_is_retired_or_listed_twice() -> None:
    glossary = (PROJECT / GLOSSARY).read_text()
    rows = re.findall(r"^\| ([^|]+?) \|", glossary, re.MULTILINE)
    terms = [
        term.strip().lower()
        for row in rows
        if row not in ("term", "---")
        for term in row.replace("`", "").split(",")
    ]
    assert len(terms) > 100
    assert sorted(terms) == sorted(set(terms))
    assert not {one.word for one in retired_words(PROJECT) if not one.is_identifier} & set(terms)


def test_no_word_is_retired_twice() -> None:
    words = [one.word for one in retired_words(PROJECT)]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words))


def test_every_word_that_a_term_replaces_is_retired() -> None:
    glossary = (PROJECT / GLOSSARY).read_text()
    columns = re.findall(r"^\|[^|\n]+\|[^|\n]+\|([^|\n]*)\|$", glossary, re.MULTILINE)
    replaced = [word for column in columns for word in re.findall(r"`([^`]+)`", column)]
    assert len(replaced) > 30
    assert set(replaced) <= {one.word for one in retired_words(PROJECT)}


def complaints(root: Path, rule: Rule, name: str, text: str) -> list[str]:
    for path, content in ((GLOSSARY, SMALL_GLOSSARY), (RETIRED_WORDS, TABLE), (name, text)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return rule(root, ("docs", "topicsd"))


WORDS = glossary_rules.retired_words_are_not_used
NAMES = glossary_rules.participles_are_not_names


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("docs/a.md", "One\n\ntwo pieces.\n", 'docs/a.md:3: "piece" is retired, use: chunk'),
        ("docs/a.md", "The fast-lane.\n", "fast lane"),
        ("docs/a.md", "The fast\nlane.\n", 'docs/a.md:1: "fast lane"'),
        ("docs/a.md", "`FastLane` reads.\n", "fast lane"),
        ("docs/a.md", "Use `Place` here.\n", "docs/a.md:1: Place is retired, use: Position"),
        ("docs/a.md", "x\n\n```\nat = Place()\n```\n", "docs/a.md:4: Place is retired"),
        ("topicsd/a.py", "def tell_piece(): pass\n", 'topicsd/a.py:1: "piece"'),
        ("topicsd/a.py", "class PieceMaker: pass\n", 'topicsd/a.py:1: "piece"'),
        ("topicsd/a.py", '"""A piece."""\n', 'topicsd/a.py:1: "piece"'),
        ("topicsd/a.py", "\nx = 1  # a forwarded request\n", 'topicsd/a.py:2: "forwarded"'),
        ("topicsd/a.py", "raise ValueError('no piece')\n", 'topicsd/a.py:1: "piece"'),
        ("topicsd/a.py", "here: Place\n", "topicsd/a.py:1: Place"),
    ],
)
def test_a_retired_word_is_reported(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    (line,) = complaints(tmp_path, WORDS, name, text)
    assert complaint in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs/a.md", "A masterpiece, piecewise, in the breakfast lanes. Place it. Forward it.\n"),
        ("docs/a.md", "`forwarded_total` counts.\n"),
        ("topicsd/a.py", '"""Place it."""\nforwarded_total = 1\n'),
        ("shared/a.py", "piece = 1\n"),
    ],
)
def test_words_that_only_look_retired_are_ignored(tmp_path: Path, name: str, text: str) -> None:
    assert complaints(tmp_path, WORDS, name, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "told = 1",
        "def f(asked): pass",
        "def found(): pass",
        "class Wanted: pass",
        "self._held = 1",
        "for told in x: pass",
    ],
)
def test_a_participle_as_a_name_is_reported(tmp_path: Path, text: str) -> None:
    (line,) = complaints(tmp_path, NAMES, "topicsd/a.py", text)
    assert "is a participle" in line


def test_a_longer_name_with_a_participle_is_ignored(tmp_path: Path) -> None:
    text = "def is_found(last_told): return last_told.held\n"
    assert complaints(tmp_path, NAMES, "topicsd/a.py", text) == []


@pytest.mark.parametrize(
    "text",
    ["class Reply: pass\n", "Reply = Callable[[int], None]\n", "Reply: TypeAlias = int | str\n"],
)
def test_a_type_name_of_two_modules_is_reported(tmp_path: Path, text: str) -> None:
    complaints(tmp_path, NAMES, "shared/b.py", "class Reply: pass\n")
    rule = glossary_rules.types_have_names_of_their_own
    (line,) = complaints(tmp_path, rule, "topicsd/a.py", text)
    assert line == "topicsd/a.py:1: the type Reply has the name of another one: shared/b.py:1"


def test_constants_and_type_variables_may_share_names(tmp_path: Path) -> None:
    text = 'T = TypeVar("T")\nROWS = TABLE["x"]\n'
    complaints(tmp_path, NAMES, "shared/b.py", text)
    assert complaints(tmp_path, glossary_rules.types_have_names_of_their_own, "topicsd/a.py", text) == []


def test_two_types_outside_the_renovated_folders_are_ignored(tmp_path: Path) -> None:
    complaints(tmp_path, NAMES, "shared/b.py", "class Reply: pass\n")
    complaints(tmp_path, NAMES, "router/a.py", "class Reply: pass\n")
    assert glossary_rules.types_have_names_of_their_own(tmp_path, ("docs", "topicsd")) == []
