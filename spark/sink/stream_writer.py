"""The sink of a stream, as Spark wants it since PySpark 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark.sink.writers import MicroBatches


class StreamWriter(MicroBatches, DataSourceStreamArrowWriter):
    """The methods are those of `MicroBatches`."""
