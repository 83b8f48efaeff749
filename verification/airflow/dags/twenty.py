"""A DAG of twenty tasks: nineteen at once, and one that adds up what they have returned."""

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

COUNT = 19


@dag(schedule=None, default_args={"retries": 5, "retry_delay": timedelta(seconds=1)})
def twenty():
    @task
    def work(number):
        time.sleep(0.5)
        return number

    @task
    def total(numbers):
        assert sum(numbers) == sum(range(COUNT))
        Path(os.environ["TOTAL_SEEN"]).touch()

    total(work.expand(number=list(range(COUNT))))


twenty()
