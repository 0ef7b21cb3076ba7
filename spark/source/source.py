"""The data source `topicsd` for Spark: options become a reader or a writer.

The columns follow from the options alone, so that Spark can ask for the schema without access to the
directory. Everything else is checked when a reader or a writer is created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, DataSourceStreamReader

from spark.errors import SourceError
from spark.pyspark_version import BATCH_LIMITS, STREAM_WRITES, is_at_least, require
from spark.source.columns import KNOWN_COLUMNS, all_columns, arrow_schema, chosen_columns, ddl
from spark.source.read_options import parse_options, schema_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

    from spark.sink.write_options import WriteOptions


class TopicsdSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topicsd"

    def schema(self) -> str:
        return ddl(all_columns(*schema_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark.source.batch_reader import BatchQueryReader, FilteredQueryReader

        options = parse_options(self.options, is_stream=False)
        kind = FilteredQueryReader if options.is_narrowed else BatchQueryReader
        return kind(options, _columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  PySpark's name.
        from spark.source.stream_reader import StreamReader

        options = parse_options(self.options, is_stream=True)
        if is_at_least(BATCH_LIMITS):
            from spark.source.bounded_stream import BoundedStreamReader

            return BoundedStreamReader(options, _columns(schema))
        if options.max_offsets or options.max_bytes:
            require(
                BATCH_LIMITS,
                "maxOffsetsPerTrigger and maxBytesPerTrigger need",
                "without them a micro-batch takes all new records",
            )
        return StreamReader(options, _columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from spark.sink.writers import BatchWriter, NumberedWriter

        options = self._write_options(schema, overwrite)
        return BatchWriter(options) if options.txn is None else NumberedWriter(options, options.txn)

    def streamWriter(  # noqa: N802  PySpark's name.
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        require(
            STREAM_WRITES,
            "a stream that writes to topics needs",
            "foreachBatch with a batch write also writes each row once, with txnAppId, and the number of the "
            "batch as txnVersion",
        )
        from spark.sink.stream_writer import StreamWriter

        options = self._write_options(schema, overwrite)
        if options.txn is not None:
            raise SourceError("txnAppId: must not be set for a stream, which numbers its own batches")
        return StreamWriter(options)

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        from spark.sink.rows import check_sink_columns
        from spark.sink.write_options import parse_write_options

        if overwrite:
            raise SourceError("mode: must be append, since records are only added at the end of a topic")
        options = parse_write_options(self.options)
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        check_sink_columns(fields, bool(options.topic))
        return options


def _columns(schema: StructType) -> pa.Schema:
    return arrow_schema(chosen_columns(schema, KNOWN_COLUMNS), KNOWN_COLUMNS)
