"""The stream in Spark, and the data pipeline."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "spark",
    __package__,
    rights="emsworker.spark.rights:RIGHTS",
    commands={
        "pipeline": Command(
            "emsworker.spark.commands:pipeline", "Run a job of the data pipeline: reports, archive, restore and others."
        )
    },
)
