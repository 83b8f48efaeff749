"""The stream in Spark: ``format("ems")`` for PySpark 4.2 or later, with the names of Spark's Kafka source.

Needs ``pip install 'emsworker[spark]'`` and Java 17. Nothing is imported here: a program without Spark pays nothing.
"""
