"""The house rules: facts about this tree that a reader may rely on.

A rule is a function that takes a root folder and returns complaints, each beginning with file and line.
`test_house_rules.py` runs all of them over the project, and each over a small tree that breaks it.

The rules examine the syntax tree, not the text, so a docstring may mention what code must not do.
"""

from __future__ import annotations

import ast
import builtins
import fnmatch
import keyword
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.unit.layers import ANY_SIZE, FILES_MAX, FILES_MIN, LAYERS

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

PACKAGES = ("topicsd", "shared", "router", "loadtest", "spark")
FOLDERS = (*PACKAGES, "docs", "tests", "systemd")
ROOT_FOLDERS_WITH_A_DOT = (".ci", ".git", ".venv")

# Decisions that are pure functions of their inputs and `now`.
PURE_MODULES = (
    "topicsd/broker/read/read_rules.py",
    "topicsd/broker/rendezvous.py",
    "topicsd/broker/upkeep/compaction_choice.py",
    "topicsd/engine/retention/retention.py",
    "topicsd/engine/write/idempotency.py",
    "topicsd/engine/wakeups/priority.py",
    "topicsd/engine/wakeups/ready_set.py",
    "topicsd/engine/wakeups/governor.py",
    "topicsd/engine/queue/lease_queue.py",
    "topicsd/engine/queue/order/fair_tags.py",
    "topicsd/engine/queue/order/fresh_jobs.py",
    "topicsd/engine/queue/order/ready_jobs.py",
    "topicsd/engine/transfer/dead_letter_stamp.py",
)
IMPURE_IMPORTS = ("topicsd.disk", "topicsd.log", "asyncio")

DISK_MODULE = "topicsd/disk/fs.py"
CLOCK_MODULE = "shared/runtime/clock.py"
# Shared memory is mapped, allocated and written like a file, but is no file.
MEMORY_MODULES = {
    "shared/ipc/board.py": ("os.posix_fallocate",),
    "shared/runtime/body_memory.py": ("os.write",),
}
# The functions of `os` that change the disk, or return a descriptor that can.
DISK_CALLS = re.compile(
    r"copy_file_range|f?(data)?sync|fdopen|f?truncate|link|symlink|mkdir|makedirs|mkfifo|mknod|open"
    r"|posix_fadvise|posix_fallocate|p?writev?|remove(dirs)?|renames?|replace|rmdir|sendfile|unlink"
)
DISK_MODULES = ("fcntl", "mmap", "shutil", "tempfile")
PATH_WRITES = ("write_bytes", "write_text")
DATETIME_READINGS = ("now", "today", "utcnow")

EMPTY_NAMES = ("base", "common", "helper", "helpers", "misc", "util", "utils")
# A test file is named after its subject, not after the order of writing.
NAMELESS_TEST = re.compile(r"_(?:[a-z]|\d+|(?:batch|misc|more|other|part)\d*)$")
LEFT_OVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
TEXT_SUFFIXES = (
    ".cfg",
    ".css",
    ".html",
    ".ini",
    ".js",
    ".json",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".yaml",
    ".yml",
)
TEXT_NAMES = ("Makefile", "run")

Rule = Callable[[Path], list[str]]


def modules(root: Path, folders: tuple[str, ...] = FOLDERS) -> Iterator[tuple[str, Path]]:
    """Yield every Python file of the project with its path relative to the root."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def files_are_short(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root):
        line_count = len(path.read_text(encoding="utf-8").splitlines())
        if line_count > FILE_LINES_MAX:
            complaints.append(f"{name}: {line_count} lines, at most {FILE_LINES_MAX}")
    return complaints


def functions_are_short(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                line_count = (node.end_lineno or node.lineno) - node.lineno + 1
                if line_count > FUNCTION_LINES_MAX:
                    message = f"{node.name} has {line_count} lines, at most {FUNCTION_LINES_MAX}"
                    complaints.append(f"{name}:{node.lineno}: {message}")
    return complaints


def modules_say_what_they_promise(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root, PACKAGES):
        tree = parse(path)
        # An empty __init__.py needs no docstring.
        if not ast.get_docstring(tree) and not (path.name == "__init__.py" and not tree.body):
            complaints.append(f"{name}: no docstring")
    return complaints


def imports(tree: ast.Module, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each import: `from a import b` is `a.b`."""
    package = name.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def is_within(imported: str, module: str) -> bool:
    return imported == module or imported.startswith(module + ".")


def layers_look_down(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root, PACKAGES):
        layer = max((key for key in LAYERS if name == key or name.startswith(key + "/")), key=len, default="")
        allowed = LAYERS.get(layer, "").split()
        own = name.rpartition("/")[0]
        for line, imported in imports(parse(path), name):
            folder = folder_of(root, imported)
            if folder and folder != own and not any(is_listed(folder, one) for one in allowed):
                complaints.append(f"{name}:{line}: {layer} may not import {imported}")
            if name in PURE_MODULES and any(is_within(imported, impure) for impure in IMPURE_IMPORTS):
                complaints.append(f"{name}:{line}: a pure module may not import {imported}")
    return complaints


def folder_of(root: Path, imported: str) -> str:
    """Return the folder of the project that an imported name is in, or nothing for other packages."""
    parts = imported.split(".")
    if parts[0] not in FOLDERS:
        return ""
    depth = 1
    while depth < len(parts) and (
        root.joinpath(*parts[: depth + 1]).is_dir() or "/".join(parts[: depth + 1]) in LAYERS
    ):
        depth += 1
    return "/".join(parts[:depth])


def is_listed(folder: str, allowed: str) -> bool:
    return folder == allowed or (allowed.endswith("/") and f"{folder}/".startswith(allowed))


def folders_have_a_layer_and_a_size(root: Path) -> list[str]:
    complaints = []
    counts: dict[str, int] = {}
    for name, path in modules(root, PACKAGES):
        if path.name != "__init__.py":
            folder = name.rpartition("/")[0]
            counts[folder] = counts.get(folder, 0) + 1
    for folder, count in counts.items():
        if folder not in LAYERS:
            complaints.append(f"{folder}/: has no layer")
        elif folder not in ANY_SIZE and not FILES_MIN <= count <= FILES_MAX:
            complaints.append(f"{folder}/: has {count} modules, {FILES_MIN} to {FILES_MAX} are allowed")
    return complaints


def only_the_seam_changes_the_disk(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root, ("topicsd", "shared")):
        if name == DISK_MODULE:
            continue
        tree = parse(path)
        for line, imported in imports(tree, name):
            module, _, member = imported.partition(".")
            if name in MEMORY_MODULES and module == "mmap":
                continue
            if module in DISK_MODULES or (module in ("os", "posix") and DISK_CALLS.fullmatch(member)):
                complaints.append(f"{name}:{line}: only {DISK_MODULE} may use {imported}")
        for node in ast.walk(tree):
            used = disk_change(node)
            if used is not None and used[1] not in MEMORY_MODULES.get(name, ()):
                line, call = used
                complaints.append(f"{name}:{line}: only {DISK_MODULE} may use {call}")
    return complaints


def disk_change(node: ast.AST) -> tuple[int, str] | None:
    """Return the disk change of a node. A mention of `os.fsync` counts: a thread may call it."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "os" and DISK_CALLS.fullmatch(node.attr):
            return node.lineno, f"os.{node.attr}"
        if node.attr in PATH_WRITES:
            return node.lineno, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
        given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
        reads = all(
            isinstance(mode, ast.Constant) and not set("wax+") & set(str(mode.value)) for mode in given
        )
        if not reads:
            return node.lineno, "open() for writing"
    return None


def only_the_clock_reads_the_time(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root, ("topicsd", "shared", "router")):
        if name == CLOCK_MODULE:
            continue
        tree = parse(path)
        read = [(line, imported) for line, imported in imports(tree, name) if is_within(imported, "time")]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in DATETIME_READINGS:
                owner = ast.unparse(node.value)
                if owner.split(".")[-1] in ("datetime", "date"):
                    read.append((node.lineno, f"{owner}.{node.attr}"))
        complaints += [f"{name}:{line}: only {CLOCK_MODULE} may use {used}" for line, used in read]
    return complaints


def names_mean_something(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root):
        words = [*path.relative_to(root).parts[:-1], path.stem]
        complaints += [f"{name}: {word} says nothing" for word in words if word in EMPTY_NAMES]
        if path.stem in sys.stdlib_module_names:
            complaints.append(f"{name}: hides the {path.stem} of the standard library")
    return complaints


def tests_are_named_after_their_outcome(root: Path) -> list[str]:
    complaints = []
    for name, path in modules(root, ("tests",)):
        has_tests = any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            for node in parse(path).body
        )
        if has_tests and not path.stem.startswith("test_"):
            complaints.append(f"{name}: has tests, but pytest looks for test_*.py")
        if path.stem.startswith("test_") and NAMELESS_TEST.search(path.stem):
            complaints.append(f"{name}: is not named after a module or an outcome")
    return complaints


def nothing_is_left_for_later(root: Path) -> list[str]:
    complaints = []
    for path in texts(root):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = LEFT_OVER.search(line)
            if match:
                complaints.append(f"{path.relative_to(root).as_posix()}:{number}: {match[0]}")
    return complaints


def docstrings_name_what_is_there(root: Path) -> list[str]:
    """Find lower-case code spans in docstrings of functions that are neither a name nor a word of the module.

    A name of another module is written with its owner: `module.name`.
    """
    complaints = []
    for name, path in modules(root):
        tree = parse(path)
        known = names_of(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for span in re.findall(r"`([a-z_][a-z0-9_]*)`", ast.get_docstring(node) or ""):
                    if span not in known:
                        complaints.append(f"{name}:{node.lineno}: {node.name}: the module has no {span}")
    return complaints


def names_of(tree: ast.Module) -> set[str]:
    """Return the names in the code of a module, the words of its strings, and those of the language."""
    names = {*dir(builtins), *keyword.kwlist}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            # Values of fields and options, and members of JSON.
            names.update(re.findall(r"\w+", str(node.value)))
        # Definitions and imports, parameters, variables, attributes.
        names.update(str(getattr(node, field, "")) for field in ("name", "asname", "arg", "id", "attr"))
    return names


def texts(root: Path) -> Iterator[Path]:
    """Yield the text files of the project that people write."""
    below = [path for folder in (*FOLDERS, ".ci") for path in sorted((root / folder).rglob("*"))]
    for path in [*sorted(root.iterdir()), *below]:
        written = path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES
        if written and path.is_file() and "__pycache__" not in path.parts:
            yield path


def paths_in_documents_exist(root: Path) -> list[str]:
    """Find paths in backticks in documents that name no file or folder of the project."""
    complaints = []
    for document in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            for quoted in re.findall(r"`([\w.-]+(?:/[\w.-]*)*)`", line):
                top = quoted.split("/")[0]
                is_root_file = "/" not in quoted and Path(quoted).suffix in (".lock", ".md", ".toml")
                is_path = "/" in quoted and top in (*FOLDERS, ".ci")
                if (is_path or is_root_file) and not (root / quoted).exists():
                    place = document.relative_to(root).as_posix()
                    complaints.append(f"{place}:{number}: there is no {quoted}")
    return complaints


def the_top_level_is_known(root: Path) -> list[str]:
    ignore = root / ".gitignore"
    patterns = ignore.read_text(encoding="utf-8").split() if ignore.exists() else []
    ignored = [pattern.rstrip("/") for pattern in patterns]
    complaints = []
    for path in sorted(root.iterdir()):
        known = path.name in FOLDERS or path.name in ROOT_FOLDERS_WITH_A_DOT
        if path.is_dir() and not known and not any(fnmatch.fnmatch(path.name, one) for one in ignored):
            complaints.append(f"{path.name}/: no folder of this project")
    return complaints


RULES: tuple[Rule, ...] = (
    files_are_short,
    functions_are_short,
    modules_say_what_they_promise,
    layers_look_down,
    folders_have_a_layer_and_a_size,
    only_the_seam_changes_the_disk,
    only_the_clock_reads_the_time,
    names_mean_something,
    tests_are_named_after_their_outcome,
    nothing_is_left_for_later,
    paths_in_documents_exist,
    docstrings_name_what_is_there,
    the_top_level_is_known,
)
