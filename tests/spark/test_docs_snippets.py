"""The snippets about Spark run as they are written: shell and Python in order, against one server."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.__main__ import main
from tests.harness.output.command_run import PROJECT
from tests.harness.output.snippets import SERVER, Snippet, is_like, run_snippets, snippets_of
from tests.harness.server.whole_server import WholeServer
from tests.spark.test_first_steps import rules_as_before

PAGES = sorted((PROJECT / "docs" / "spark").glob("*.md"))
DATA_DIR = "topics-data"
# Run in the session of all tests: a Java for each would take half a minute.
JOB = "python -m spark "


class Page:
    """What runs the snippets of one page: Python shares its names, and `spark` is a session.

    Files that a page names are in its folder. The process of Spark has another one.
    """

    def __init__(self, session: SparkSession, port: int, folder: Path) -> None:
        self._session = session
        self._port = port
        self._folder = folder
        self._names: dict[str, Any] = {"spark": session}

    def run(self, snippet: Snippet) -> list[str]:
        if snippet.language == "python":
            return self._run_program(snippet)
        if snippet.code.startswith(JOB):
            arguments = shlex.split(self._placed(snippet.code.removeprefix(JOB)))
            code = main(arguments, self._session)
            return [] if code == 0 else [f"line {snippet.line}: ended with {code}"]
        return run_snippets([snippet], self._port, self._folder)

    def _run_program(self, snippet: Snippet) -> list[str]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(self._placed(snippet.code), f"line {snippet.line}", "exec"), self._names)
        is_same = snippet.expected is None or is_like(printed.getvalue(), snippet.expected)
        return [] if is_same else [f"line {snippet.line}: printed {printed.getvalue()}"]

    def _placed(self, code: str) -> str:
        code = code.replace(SERVER, f"127.0.0.1:{self._port}")
        return re.sub(r"(?<=[ \"])\./", f"{self._folder}/", code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_snippets_of_a_page_do_what_they_show(page: Path, spark: SparkSession, tmp_path: Path) -> None:
    with (
        WholeServer(tmp_path, shards=1, data_dir=tmp_path / DATA_DIR) as server,
        rules_as_before(spark),
    ):
        runner = Page(spark, server.port, tmp_path)
        for snippet in snippets_of(page.read_text(encoding="utf-8")):
            assert runner.run(snippet) == []
