"""The sink of a stream, as Spark wants it since PySpark 4.1.

Must not know: anything but whose base it needs.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from spark.writers import MicroBatches


class StreamWriter(MicroBatches, DataSourceStreamArrowWriter):
    """The methods are those of `MicroBatches`."""
