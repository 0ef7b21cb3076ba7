"""The example in `spark/examples` does what it says, from its first cell to its last."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tests.harness.output.command_run import PROJECT
from tests.spark.conftest import Store

EXAMPLE = PROJECT / "spark" / "examples" / "first_steps.py"


@contextmanager
def rules_as_before(spark: SparkSession) -> Iterator[None]:
    """The session is that of all tests, and others look at what it does without the rule of the example."""
    experimental = cast(Any, spark)._jsparkSession.experimental()
    rules = experimental.extraOptimizations()
    try:
        yield
    finally:
        getattr(experimental, "extraOptimizations_$eq")(rules)


def test_a_newcomer_can_run_the_example(
    spark: SparkSession,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOPICS_URL", f"http://127.0.0.1:{store.server.port}")
    monkeypatch.setenv("TOPICS_DATA_DIR", store.path)
    monkeypatch.setenv("FIRST_STEPS_DIR", str(tmp_path))
    with rules_as_before(spark):
        program = runpy.run_path(str(EXAMPLE))
    spark.sparkContext.setLogLevel("OFF")
    output = capsys.readouterr().out
    assert "1200 records at first, 5 new records since" in output
    sums = {row.kind: row["sum"] for row in program["sold"].collect()}
    rows = [row["data"] for row in store.client.rows("first-steps")]
    assert len(rows) == 1205
    for kind in ("coffee", "tea", "cake"):
        assert sums[kind] == pytest.approx(sum(row["price"] for row in rows if row["kind"] == kind))
    results = [row["data"] for row in store.client.rows("first-steps-sums")]
    assert {result["kind"] for result in results} == {"coffee", "tea", "cake"}
    assert sum(result["sum"] for result in results) == pytest.approx(sum(row["price"] for row in rows))
