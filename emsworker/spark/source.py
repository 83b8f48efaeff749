"""Entry point of ``format("ems")`` for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from emsworker.arrow.options import dataset_of, read_options
from emsworker.spark.brief import brief_errors
from emsworker.spark.columns import check_schema, default_schema
from emsworker.spark.options import write_options

if TYPE_CHECKING:
    from emsworker.spark.batch import EmsReader


@brief_errors
class EmsSource(DataSource):
    """The stream as a Spark data source: reads and writes, in batches and streaming.

    Spark finds it through the package ``pyspark_ems``. Readers and writers are imported when Spark asks for them,
    because the lookup of data sources must not fail if pyarrow is missing.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "ems"

    def schema(self) -> StructType:
        """Return the columns, with the names of Kafka's source."""
        dataset, headers, meta = dataset_of(self.options)
        return default_schema(dataset, headers=headers, meta=meta)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader for ``spark.read``."""
        from emsworker.spark.batch import EmsReader, FilteringReader

        options = read_options(self.options, streaming=False)
        check_schema(options.dataset, schema)
        kind: type[EmsReader] = FilteringReader if options.push_filters else EmsReader
        return kind(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Create the reader for ``spark.readStream``."""
        from emsworker.spark.stream import EmsStreamReader

        return EmsStreamReader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer for ``DataFrame.write``."""
        from emsworker.spark.sink import EmsWriter, Rows

        options = write_options(self.options, streaming=False, overwrite=overwrite)
        return EmsWriter(Rows.of(schema, options.topic), options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Create the writer for ``DataFrame.writeStream``; the driver calls this again at each commit."""
        from emsworker.spark.sink import EmsStreamWriter, Rows

        options = write_options(self.options, streaming=True, overwrite=overwrite)
        return EmsStreamWriter(Rows.of(schema, options.topic), options)
