"""Rules of vocabulary: one word per concept, as `docs/glossary.md` and `retired_words.md` list them.

Each rule takes the root folder and the renovated folders, and returns complaints that begin with file and
line. A folder joins `RENOVATED` when its text uses the words of the glossary. The list is complete when it
names the whole tree.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.unit.house_rules import PACKAGES, TEXT_SUFFIXES

GLOSSARY = "docs/glossary.md"
RETIRED_WORDS = "tests/unit/retired_words.md"
# A folder, or a file at the top level.
RENOVATED = (
    *PACKAGES,
    "tests",
    "systemd",
    "docs",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "mkdocs.yml",
)
# Bytes of formats, and the rules themselves.
EXEMPT = re.compile(
    r"tests/golden/.*\.json|tests/unit/((test_glossary|glossary_rules)\.py|retired_words\.md)"
)
PARTICIPLES = frozenset({"told", "asked", "found", "wanted", "held"})

_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+?) \|([^|]*)\|$", re.MULTILINE)
_REPLACES = re.compile(r"^(\|[^|\n]+\|[^|\n]+\|)[^|\n]*\|$", re.MULTILINE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")

Rule = Callable[[Path, tuple[str, ...]], list[str]]


class Retired(NamedTuple):
    """One row of the table of retired words."""

    word: str
    instead: str
    frozen: tuple[str, ...]

    @property
    def is_identifier(self) -> bool:
        """Return whether the entry is one identifier, not a word."""
        return self.word != self.word.lower() or "_" in self.word


def retired_words(root: Path) -> list[Retired]:
    """Read the table of retired words."""
    table = (root / RETIRED_WORDS).read_text(encoding="utf-8")
    return [
        Retired(word, instead, tuple(re.findall(r"`([^`]+)`", frozen)))
        for word, instead, frozen in _ROW.findall(table)
    ]


def renovated_files(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield the text files of the given folders; a folder may also be one file."""
    for folder in folders:
        path = root / folder
        yield from [path] if path.is_file() else sorted(path.rglob("*"))


def texts(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; the glossary without its column of retired words."""
    for path in renovated_files(root, folders):
        name = path.relative_to(root).as_posix()
        if path.suffix in TEXT_SUFFIXES and path.is_file() and not EXEMPT.fullmatch(name):
            text = path.read_text(encoding="utf-8")
            yield name, _REPLACES.sub(r"\1", text) if name == GLOSSARY else text


def retired_words_are_not_used(root: Path, folders: tuple[str, ...]) -> list[str]:
    """Find retired words in prose, identifiers and messages."""
    retired = retired_words(root)
    phrases = [(one, _phrase(one.word)) for one in retired if not one.is_identifier]
    identifiers = {one.word: one for one in retired if one.is_identifier}
    frozen = {name for one in retired for name in one.frozen}
    is_frozen = re.compile("|".join(map(_whole, sorted(frozen)))) if frozen else None
    complaints = []
    for name, text in texts(root, folders):
        # Splitting identifiers keeps the line numbers.
        words = is_frozen.sub("", text) if is_frozen else text
        words = _CAMEL.sub(" ", words).replace("_", " ")
        for one, pattern in phrases:
            for match in pattern.finditer(words):
                line = words.count("\n", 0, match.start()) + 1
                complaints.append(f'{name}:{line}: "{one.word}" is retired, use: {one.instead}')
        for line, identifier in _identifiers(name, text):
            if identifier in identifiers:
                instead = identifiers[identifier].instead
                complaints.append(f"{name}:{line}: {identifier} is retired, use: {instead}")
    return complaints


def _whole(frozen: str) -> str:
    """Return a pattern for a frozen text that is not part of a longer word."""
    before, after = (r"\b" if re.match(r"\w", end) else "" for end in (frozen[0], frozen[-1]))
    return before + re.escape(frozen) + after


def _phrase(word: str) -> re.Pattern[str]:
    spaced = r"[\s-]+".join(word.split())
    return re.compile(rf"\b{spaced}s?\b", re.IGNORECASE)


def _identifiers(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the identifiers of a module, or those in the code spans of a document, with their lines."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
        return
    for span in _CODE.finditer(text):
        for match in _NAME.finditer(span[0]):
            yield text.count("\n", 0, span.start() + match.start()) + 1, match[0]


def participles_are_not_names(root: Path, folders: tuple[str, ...]) -> list[str]:
    """Find functions, classes, arguments, variables and attributes named by a bare participle."""
    complaints = []
    for name, text in texts(root, folders):
        if not name.endswith(".py"):
            continue
        for line, bound in _bound_names(ast.parse(text)):
            if bound.strip("_").lower() in PARTICIPLES:
                complaints.append(f"{name}:{line}: {bound} is a participle, use a noun or a verb")
    return complaints


def _bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def types_have_names_of_their_own(root: Path, folders: tuple[str, ...]) -> list[str]:
    """Find a type name that several modules of the product bind, where one of them is renovated."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in texts(root, PACKAGES):
        if name.endswith(".py"):
            for line, bound in _types(ast.parse(text)):
                places[bound].append(f"{name}:{line}")
    complaints = []
    for bound, where in sorted(places.items()):
        ours = [place for place in where if place.startswith(tuple(f"{folder}/" for folder in folders))]
        if len(where) > 1 and ours:
            others = ", ".join(place for place in where if place != ours[0])
            complaints.append(f"{ours[0]}: the type {bound} has the name of another one: {others}")
    return complaints


def _types(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the classes of a module, and its aliases of types; a type variable is neither."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_type(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][A-Za-z0-9]*[a-z]\w*", target.id):
                    yield node.lineno, target.id


def _is_type(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Subscript) or (
        isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
    )


RULES: tuple[Rule, ...] = (
    retired_words_are_not_used,
    participles_are_not_names,
    types_have_names_of_their_own,
)
