"""Reads of the stream as Arrow: for PyArrow, pandas, Polars and DuckDB, and below ``format("ems")`` of Spark.

Needs ``pip install 'emsworker[arrow]'``; PyArrow is not imported until it is used.
"""
