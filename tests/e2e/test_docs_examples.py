"""The snippets of the documentation run as written and print the documented output."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path

import pytest

from tests.harness.output import snippets
from tests.harness.output.command_run import PROJECT
from tests.harness.output.snippets import Snippet, run_snippets, snippets_of
from tests.harness.server.whole_server import WholeServer

DOCUMENTS = {
    path.relative_to(PROJECT).as_posix(): snippets_of(path.read_text(encoding="utf-8"))
    for path in [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    # Spark documents share one session (`tests/spark/test_docs_snippets.py`).
    if "spark" not in path.relative_to(PROJECT).parts
}
# The documents show the default data directory.
DATA_DIR = "topics-data"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("document", [name for name, examples in DOCUMENTS.items() if examples])
def test_the_snippets_of_a_document_do_what_they_show(document: str, tmp_path: Path) -> None:
    # Topics of several shards are listed in the order of their shards.
    with WholeServer(tmp_path, shards=1, data_dir=tmp_path / DATA_DIR) as server:
        assert run_snippets(DOCUMENTS[document], server.port, tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_documents_about_jobs_can_be_followed_in_order_on_one_server(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=1, data_dir=tmp_path / DATA_DIR) as server:
        for document in ("README.md", "docs/quickstart.md", "docs/guides/queues.md", "docs/api/queues.md"):
            assert run_snippets(DOCUMENTS[document], server.port, tmp_path) == [], document


def test_there_are_snippets_to_run() -> None:
    assert sum(map(len, DOCUMENTS.values())) >= 3


def test_the_doctests_of_the_runner_pass() -> None:
    result = doctest.testmod(snippets)
    assert (result.failed, result.attempted) == (0, 5)


def run(document: str, folder: Path) -> list[str]:
    """Run a document that needs no server."""
    return run_snippets(snippets_of(document), 1, folder)


@pytest.mark.slow
def test_fences_share_one_shell_and_outputs_are_compared(tmp_path: Path) -> None:
    document = (
        "```bash\nname=orders\n```\n\ntext\n\n```console\n$ echo $name \\\n    17\norders 17\n"
        "$ echo '{\"epoch\":5}'\n"
        '{"epoch":9}\n```\n\n```python\nprint("on")\n```\n\n```text\non\n```\n\n```json\n{"not": run\n```\n'
    )
    assert [one.language for one in snippets_of(document)] == ["bash", "console", "console", "python"]
    assert run(document, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("```console\n$ echo a\nb\n```\n", "line 1: echo a\nshows:\na\n"),
        ("\n```bash\nfalse\n```\n", "line 2: ended with 1:\n"),
        ("```bash\necho '{\"error\":{}}'\n```\n", 'line 1: ended with 0:\n{"error":{}}\n'),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "line 1: print(1)\nshows:\n1\n"),
        ("```python\nraise SystemExit(3)\n```\n", "line 1: ended with 3:\n"),
        ("```bash\nexit 0\n```\n", "line 1: was not run"),
    ],
)
def test_a_snippet_with_other_output_is_reported(tmp_path: Path, document: str, complaint: str) -> None:
    assert run(document, tmp_path) == [complaint]


def test_a_text_fence_that_does_not_follow_directly_is_no_output() -> None:
    document = "```python\nprint(1)\n```\n\nIts input was\n\n```text\n2\n```\n"
    assert snippets_of(document) == [Snippet(1, "python", "print(1)\n", None)]
