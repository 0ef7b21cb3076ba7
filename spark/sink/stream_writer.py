"""The sink of a stream, with the interface that Spark requires since PySpark 4.1."""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark.sink.writers import MicroBatches


class StreamWriter(MicroBatches, DataSourceStreamArrowWriter):
    """A stream writer for Spark with the methods of `MicroBatches`."""
