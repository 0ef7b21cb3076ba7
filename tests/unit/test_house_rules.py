from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import house_rules
from tests.unit.house_rules import RULES, Rule

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_follows_the_rule(rule: Rule) -> None:
    assert rule(PROJECT) == []


def test_every_rule_is_broken_by_an_example() -> None:
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


LONG_FUNCTION = "def long():\n" + "    pass\n" * house_rules.FUNCTION_LINES_MAX

# A rule, a file that breaks it, its text, and the complaint.
BROKEN: list[tuple[Rule, str, str, str]] = [
    (house_rules.files_are_short, "shared/long.py", "\n" * 501, "shared/long.py: 501 lines"),
    (house_rules.functions_are_short, "topicsd/a.py", LONG_FUNCTION, "topicsd/a.py:1: long has 71 lines"),
    (house_rules.functions_are_short, "topicsd/a.py", "async " + LONG_FUNCTION, "long has 71 lines"),
    (house_rules.modules_say_what_they_promise, "shared/a.py", "x = 1\n", "no docstring"),
    (house_rules.modules_say_what_they_promise, "shared/__init__.py", "x = 1\n", "no docstring"),
    (
        house_rules.layers_look_down,
        "shared/ipc/a.py",
        "import topicsd.log",
        "shared/ipc may not import topicsd.log",
    ),
    (
        house_rules.layers_look_down,
        "router/accept/a.py",
        "from topicsd import log",
        "may not import topicsd.log",
    ),
    (
        house_rules.layers_look_down,
        "topicsd/disk/a.py",
        "import tests.harness",
        "topicsd/disk may not import",
    ),
    (house_rules.layers_look_down, "topicsd/disk/a.py", "from topicsd.log import b", "topicsd/disk may not"),
    (house_rules.layers_look_down, "topicsd/disk/a.py", "from ..log import b", "topicsd/disk may not"),
    (house_rules.layers_look_down, "topicsd/log/a.py", "from .. import engine", "topicsd/log may not"),
    (house_rules.layers_look_down, "topicsd/log/a.py", "def f():\n    import topicsd.engine", "a.py:2:"),
    (
        house_rules.layers_look_down,
        "topicsd/engine/a.py",
        "import topicsd.http.http1.b",
        "topicsd/engine may not",
    ),
    (house_rules.layers_look_down, "topicsd/engine/a.py", "import topicsd.cli", "topicsd/engine may not"),
    (
        house_rules.layers_look_down,
        "topicsd/engine/read/a.py",
        "import topicsd.engine.write.b",
        "read may not",
    ),
    (house_rules.layers_look_down, "topicsd/cli/a.py", "import router.accept.b", "topicsd/cli may not"),
    (house_rules.layers_look_down, "topicsd/cli/serve.py", "import topicsd.log", "serve.py may not import"),
    (
        house_rules.layers_look_down,
        "topicsd/worker/a.py",
        "from router.accept import b",
        "topicsd/worker may not",
    ),
    (house_rules.folders_have_a_layer_and_a_size, "topicsd/new/a.py", "", "topicsd/new/: has no layer"),
    (house_rules.folders_have_a_layer_and_a_size, "topicsd/log/a.py", "", "topicsd/log/: has 1 modules"),
    (
        house_rules.layers_look_down,
        "topicsd/engine/retention/retention.py",
        "import asyncio",
        "a pure module may not",
    ),
    (
        house_rules.layers_look_down,
        "topicsd/engine/write/idempotency.py",
        "import topicsd.log.frame",
        "a pure module",
    ),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "import os\nos.open('x', 0)", "a.py:2: "),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "call(os.fdatasync, fd)", "os.fdatasync"),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "from os import fsync", "os.fsync"),
    (house_rules.only_the_seam_changes_the_disk, "shared/a.py", "import fcntl", "may use fcntl"),
    (house_rules.only_the_seam_changes_the_disk, "shared/a.py", "from shutil import move", "may use shutil"),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "open('x', 'wb')", "open() for writing"),
    (
        house_rules.only_the_seam_changes_the_disk,
        "topicsd/a.py",
        "open('x', mode='r+')",
        "open() for writing",
    ),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "open('x', mode)", "open() for writing"),
    (house_rules.only_the_seam_changes_the_disk, "topicsd/a.py", "Path('x').write_text('')", "write_text"),
    (house_rules.only_the_clock_reads_the_time, "topicsd/a.py", "import time", "may use time"),
    (
        house_rules.only_the_clock_reads_the_time,
        "router/a.py",
        "from time import sleep",
        "may use time.sleep",
    ),
    (house_rules.only_the_clock_reads_the_time, "shared/a.py", "datetime.datetime.now()", "datetime.now"),
    (house_rules.names_mean_something, "topicsd/utils.py", "", "utils says nothing"),
    (house_rules.names_mean_something, "tests/common/a.py", "", "common says nothing"),
    (house_rules.names_mean_something, "topicsd/queue.py", "", "hides the queue of the standard library"),
    (house_rules.tests_are_named_after_their_outcome, "tests/unit/wal.py", "def test_a(): pass", "has tests"),
    (house_rules.tests_are_named_after_their_outcome, "tests/unit/test_wal_b.py", "", "not named after"),
    (house_rules.tests_are_named_after_their_outcome, "tests/unit/test_wal_batch1.py", "", "not named after"),
    (house_rules.nothing_is_left_for_later, "Makefile", "# FIX" + "ME later", "Makefile:1: FIX" + "ME"),
    (house_rules.nothing_is_left_for_later, "tests/a.py", "\n# TO" + "DO: more", "tests/a.py:2:"),
    (
        house_rules.paths_in_documents_exist,
        "README.md",
        "See `topicsd/gone.py`.",
        "there is no topicsd/gone.py",
    ),
    (house_rules.paths_in_documents_exist, "README.md", "See `GONE.md`.", "there is no GONE.md"),
    (
        house_rules.paths_in_documents_exist,
        "docs/design/log.md",
        "See `shared/gone.py`.",
        "docs/design/log.md:1: there is no shared/gone.py",
    ),
    (
        house_rules.docstrings_name_what_is_there,
        "shared/a.py",
        'def f(done):\n    "Call `done` or `on_end`."',
        "shared/a.py:1: f: the module has no on_end",
    ),
    (house_rules.the_top_level_is_known, "scripts/a.sh", "", "scripts/: no folder of this project"),
    (house_rules.the_top_level_is_known, ".idea/a.xml", "", ".idea/: no folder of this project"),
]


@pytest.mark.parametrize(("rule", "name", "text", "complaint"), BROKEN)
def test_a_tree_that_breaks_a_rule_is_reported(
    tmp_path: Path, rule: Rule, name: str, text: str, complaint: str
) -> None:
    write(tmp_path, {name: text})
    (said,) = rule(tmp_path)
    assert complaint in said


# Files that seem to break a rule, but do not.
KEPT: dict[str, str] = {
    ".gitignore": "build/\n*.egg-info/\n",
    "build/lib/a.py": "import time",
    "topicsd.egg-info/top_level.txt": "",
    "README.md": "`topicsd/disk/fs.py`, `topicsd/disk/`, `meta/MANIFEST.json`, `topicsd inspect DIR`, `a/b`",
    "shared/__init__.py": "",
    "shared/runtime/clock.py": '"""Reads the time."""\nimport time\n',
    "topicsd/disk/fs.py": '"""Changes the disk."""\nimport os\nimport fcntl\nos.fsync(3)\nopen("x", "w")\n',
    "topicsd/log/reader.py": '"""Uses os.open nowhere."""\nfrom topicsd.disk.fs import Fs\nfs.open("x")\n',
    "topicsd/log/writer.py": '"""Writes."""\nfrom topicsd.log import frame\nfrom . import batch\n',
    "topicsd/engine/read/read.py": '"""Reads."""\nimport os\nopen("x", "rb")\nos.getpid()\nloop.time()\n',
    "topicsd/cli/serve.py": '"""Starts it all."""\nfrom router.supervision import supervisor\n',
    "topicsd/http/http1/app.py": '"""A folder below a package hides nothing."""\n',
    "tests/unit/wal/test_truncated_batch_is_cut.py": "import time, topicsd.log\ndef test_it(): pass\n",
    "tests/harness/machine/memory_disk.py": (
        '"""Names `what_is_elsewhere`."""\n'
        'def make(done, key="kept"):\n    "Call `done`, `disk.end` or `make`; `None` and `kept` end."\n'
    ),
}
KEPT.update(
    {
        f"{folder}/{name}.py": '"""Fills the folder."""\n'
        for folder in (
            "shared/runtime",
            "topicsd/disk",
            "topicsd/log",
            "topicsd/engine/read",
            "topicsd/cli",
            "topicsd/http/http1",
        )
        for name in ("first", "second")
    }
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_tree_that_follows_the_rules_is_accepted(tmp_path: Path, rule: Rule) -> None:
    write(tmp_path, KEPT)
    assert rule(tmp_path) == []
