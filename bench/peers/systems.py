"""The systems: versions, settings, and what each promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Broker = Literal["redis", "rabbitmq", "postgresql", "database", "database+redis"]

_REDIS = "synced every second, a crash may lose the last one"
_RABBITMQ = "durable queue, publisher confirms"
_POSTGRESQL = "synced at every commit"
_DATABASE = "synced at every commit"


@dataclass(frozen=True)
class System:
    """What is measured.

    Args:
        name: for the command line, unique.
        title: for people.
        broker: the server that it needs.
        durability: what a confirmed message survives.
        promise: what happens to a message whose worker dies.
        app: the module in ``bench.peers.apps``.
        worker: the worker's command, for the interpreter: ``-m ...``.
        copies: how many such commands make two processes.
        requirements: packages of its own environment; none for ours.
        slow: fewer messages will do.
        ends: it ends by itself after SIGTERM; one that does not is killed.
        broker_variable: under which the worker's command itself looks for the server's address.
    """

    name: str
    title: str
    broker: Broker
    durability: str
    promise: str
    app: str
    worker: tuple[str, ...]
    copies: int = 1
    requirements: tuple[str, ...] = ()
    slow: bool = False
    ends: bool = True
    broker_variable: str = "BENCH_BROKER"

    @property
    def line(self) -> str:
        """Its name on the command line."""
        return f"peers/{self.name}"

    @property
    def environment_name(self) -> str:
        """Systems with the same packages share an environment."""
        return self.requirements[0].partition("=")[0].partition("[")[0] if self.requirements else ""


_LOUD = "--loglevel=ERROR"
_CELERY = ("-m", "celery", "-A", "bench.peers.apps.celery_app", "worker", "--concurrency=2", _LOUD)
_CELERY_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
_LATE = "at least once: acknowledged after the run"
_PSYCOPG = "psycopg[binary,pool]==3.3.9"

EMS = System(
    "ems",
    "EMS",
    "database",
    _DATABASE,
    "at least once, or exactly one effect in a transactional task",
    "ems_app",
    ("-m", "emsworker", "worker", "-A", "bench.peers.apps.ems_app", "-Q", "bench", "--processes=2", "--threads=4",
     "--log-level=warning"),
)  # fmt: skip
EMS_REDIS = System("ems-redis", "EMS, woken by Redis", "database+redis", _DATABASE, EMS.promise, EMS.app, EMS.worker)

_RAW_REDIS = System(
    "raw-redis", "bare Redis list", "redis", _REDIS, "a list per process", "raw_redis",
    ("-m", "bench.peers.apps.raw_redis"), copies=2,
)  # fmt: skip
_RAW_RABBITMQ = System(
    "raw-rabbitmq", "bare RabbitMQ queue", "rabbitmq", _RABBITMQ, _LATE, "raw_rabbitmq",
    ("-m", "bench.peers.apps.raw_rabbitmq"), copies=2,
)  # fmt: skip
_RAW_POSTGRESQL = System(
    "raw-postgresql", "bare PostgreSQL table", "postgresql", _POSTGRESQL, "one row a transaction", "raw_postgresql",
    ("-m", "bench.peers.apps.raw_postgresql"), copies=2, slow=True, requirements=(_PSYCOPG,),
)  # fmt: skip
BARE = System(
    "bare-loop", "bare loop, 500 a claim", "database", _DATABASE, "none", "bare_app",
    ("-m", "bench.peers.apps.bare_app"), copies=2,
)  # fmt: skip
LIMITS = {"redis": _RAW_REDIS, "rabbitmq": _RAW_RABBITMQ, "postgresql": _RAW_POSTGRESQL, "database+redis": BARE}

PEERS = (
    System(
        "celery-redis", "Celery 5.7 on Redis", "redis", _REDIS, _LATE, "celery_app", (*_CELERY, *_CELERY_QUIET),
        requirements=("celery[redis]==5.7.0", "redis==8.1.0"),
    ),
    System(
        "celery-rabbitmq", "Celery 5.7 on RabbitMQ", "rabbitmq", _RABBITMQ, _LATE, "celery_app",
        (*_CELERY, *_CELERY_QUIET), requirements=("celery[redis]==5.7.0", "redis==8.1.0"),
    ),
    System(
        "dramatiq", "Dramatiq 2.2 on Redis", "redis", _REDIS, _LATE, "dramatiq_app",
        ("-m", "dramatiq", "bench.peers.apps.dramatiq_app", "--processes=2", "--threads=8"),
        requirements=("dramatiq[redis]==2.2.1", "redis==8.1.0"),
    ),
    System(
        "huey", "Huey 3.5 on Redis", "redis", _REDIS, "at most once: taken out before the run", "huey_app",
        ("-m", "huey.bin.huey_consumer", "bench.peers.apps.huey_app.huey", "-k", "process", "-w", "2", "-q", "-n",
         "-g", "TERM"),
        requirements=("huey==3.5.4", "redis==8.1.0"),
    ),
    System(
        "taskiq", "Taskiq 0.13 on a Redis stream", "redis", _REDIS, _LATE, "taskiq_app",
        ("-m", "taskiq", "worker", "bench.peers.apps.taskiq_app:broker", "--workers=2", "--max-prefetch=100",
         "--ack-type=when_executed", "--log-level=ERROR"),
        requirements=("taskiq[uvloop]==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0"), ends=False,
    ),
    System(
        "rq", "RQ 2.12 on Redis (SimpleWorker)", "redis", _REDIS, "failed when its worker is gone, run again by hand",
        "rq_app",
        ("-m", "rq.cli", "worker-pool", "bench", "--num-workers=2", "--worker-class=rq.worker.SimpleWorker",
         "--serializer=json", "--quiet"),
        requirements=("rq==2.12.0", "redis==8.1.0"), slow=True, broker_variable="RQ_REDIS_URL",
    ),
    System(
        "procrastinate", "Procrastinate 3.10 on PostgreSQL", "postgresql", _POSTGRESQL,
        "stalled when its worker is gone, run again by a task of one's own", "procrastinate_app",
        ("-m", "procrastinate", "--app=bench.peers.apps.procrastinate_app.app", "worker", "--concurrency=10"),
        copies=2, requirements=("procrastinate==3.10.0", _PSYCOPG), slow=True,
    ),
    System(
        "awa", "Awa 0.6 on PostgreSQL", "postgresql", _POSTGRESQL, "at least once: rescued by heartbeat", "awa_app",
        ("-m", "bench.peers.apps.awa_app"), copies=2, requirements=("awa-pg==0.6.9",),
    ),
    System(
        "original", "the algorithm that EMS starts from", "database+redis", _DATABASE,
        "a message behind a hole of 100 ms is lost", "original_app", ("-m", "bench.peers.apps.original_app"), copies=2,
    ),
)  # fmt: skip
