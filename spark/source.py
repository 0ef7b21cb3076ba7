"""The data source `topicsd` for Spark: what the options say becomes a reader.

Columns follow from the options alone, so that Spark can ask for them without a look at the directory. All
else is checked when a reader is made.

Must not know: how anything is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from spark.columns import all_columns, arrow_schema, chosen_columns, ddl
from spark.read_options import parse_options, schema_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TopicsdSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topicsd"

    def schema(self) -> str:
        return ddl(all_columns(*schema_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark.batch_reader import BatchReader, PushdownReader

        options = parse_options(self.options, is_stream=False)
        columns = all_columns(options.is_native, options.include_headers)
        kind = PushdownReader if options.pushdown else BatchReader
        return kind(options, arrow_schema(chosen_columns(schema, columns), columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  PySpark's name.
        from spark.stream_reader import StreamReader

        options = parse_options(self.options, is_stream=True)
        columns = all_columns(options.is_native, options.include_headers)
        return StreamReader(options, arrow_schema(chosen_columns(schema, columns), columns))
