"""A feature that an older PySpark lacks is refused with a reason; everything else works."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest
from pyspark.sql.types import StructType

from spark.errors import SourceError
from spark.optimizer.narrow_reads import narrow_reads
from spark.pyspark_version import is_at_least
from spark.source.source import TopicsdSource

READ = {"url": "http://127.0.0.1:1", "subscribe": "orders"}
EVERYTHING = StructType()


def test_versions_are_compared_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}
    for installed in ("4.0.5", "4.1.0", "4.10.0.dev1", "5.0.0"):
        monkeypatch.setattr(pyspark, "__version__", installed)
        results[installed] = is_at_least((4, 1))
    assert results == {"4.0.5": False, "4.1.0": True, "4.10.0.dev1": True, "5.0.0": True}


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_bounds_of_a_batch_need_what_can_bound_it(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = TopicsdSource({**READ, option: "5"})
    assert hasattr(bounded.streamReader(EVERYTHING), "getDefaultReadLimit")
    monkeypatch.setattr(pyspark, "__version__", "4.1.3")
    assert not hasattr(TopicsdSource(READ).streamReader(EVERYTHING), "prepareForTriggerAvailableNow")
    message = r"^maxOffsetsPerTrigger and maxBytesPerTrigger need PySpark 4\.2 or newer, got 4\.1\.3; w"
    with pytest.raises(SourceError, match=message):
        bounded.streamReader(EVERYTHING)


def test_a_feature_missing_in_4_0_is_refused_with_an_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    with pytest.raises(SourceError, match=r"needs PySpark 4\.1 or newer, got 4\.0\.1; foreachBatch with"):
        TopicsdSource(READ).streamWriter(EVERYTHING, False)
    with pytest.raises(SourceError, match=r"^narrow_reads needs PySpark 4\.1 or newer, got 4\.0\.1; p"):
        narrow_reads(cast(Any, SimpleNamespace()))


OF_4_0 = """
import sys
import pyspark, pyspark.sql.datasource as datasource
pyspark.__version__ = "4.0.0"
sys.modules["pyspark.sql.streaming.datasource"] = None
for name in list(vars(datasource)):
    if name not in ("DataSource", "DataSourceReader", "DataSourceStreamReader", "DataSourceArrowWriter",
                    "InputPartition", "WriterCommitMessage", "DataSourceWriter", "DataSourceRegistration"):
        if isinstance(getattr(datasource, name), type):
            delattr(datasource, name)
import pyspark_topicsd, spark.__main__, spark.jobs.job_runs, spark.sink.writers, spark.task.read_files
from pyspark.sql.types import StructType
source = pyspark_topicsd.DefaultSource({"url": "http://127.0.0.1:1", "subscribe": "orders"})
print(type(source.reader(StructType())).__name__, type(source.streamReader(StructType())).__name__)
"""


def test_nothing_is_imported_that_4_0_has_not() -> None:
    output = subprocess.run([sys.executable, "-c", OF_4_0], capture_output=True, text=True, check=False)
    assert (output.stdout, output.stderr) == ("BatchQueryReader StreamReader\n", "")
