"""The snippets about Spark run as they are written: shell and Python in order, against one server."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.harness.command_run import PROJECT
from tests.harness.served import served
from tests.harness.snippets import SERVER, Snippet, is_like, run_snippets, snippets_of
from tests.spark.test_first_steps import rules_as_before

PAGES = sorted((PROJECT / "docs" / "spark").glob("*.md"))
DATA_DIR = "topics-data"


class Program:
    """The Python of one page: its snippets share their names, and `spark` is a session."""

    def __init__(self, session: SparkSession, port: int) -> None:
        self._names: dict[str, Any] = {"spark": session}
        self._port = port

    def run(self, snippet: Snippet) -> list[str]:
        printed = io.StringIO()
        code = snippet.code.replace(SERVER, f"127.0.0.1:{self._port}")
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"line {snippet.line}", "exec"), self._names)
        is_same = snippet.expected is None or is_like(printed.getvalue(), snippet.expected)
        return [] if is_same else [f"line {snippet.line}: printed {printed.getvalue()}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_do_what_they_show(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--shards=1", f"--data-dir={tmp_path / DATA_DIR}")
    with served(tmp_path, *flags) as server, rules_as_before(spark):
        program = Program(spark, server.port)
        for snippet in snippets_of(page.read_text(encoding="utf-8")):
            if snippet.language == "python":
                complaints = program.run(snippet)
            else:
                complaints = run_snippets([snippet], server.port, tmp_path)
            assert complaints == []
