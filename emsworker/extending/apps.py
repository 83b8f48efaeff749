"""Applications: the app itself, its broker, tasks, middleware, and the beat beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.app import Ems as Ems
    from emsworker.beat.leader import Beat as Beat
    from emsworker.broker.memory import MemoryBroker as MemoryBroker
    from emsworker.broker.mysql import MysqlBroker as MysqlBroker
    from emsworker.broker.port import Broker as Broker
    from emsworker.tasks.annotations import UNKNOWN as UNKNOWN
    from emsworker.tasks.annotations import ResultType as ResultType
    from emsworker.tasks.annotations import Types as Types
    from emsworker.tasks.annotations import result_type_of as result_type_of
    from emsworker.tasks.correlation import CAUSATION as CAUSATION
    from emsworker.tasks.correlation import CORRELATION as CORRELATION
    from emsworker.tasks.handler import check_function as check_function
    from emsworker.tasks.handler import full_name as full_name
    from emsworker.tasks.middleware import Middleware as Middleware
    from emsworker.tasks.middleware import PublishBracket as PublishBracket
    from emsworker.tasks.middleware import RunBracket as RunBracket
    from emsworker.tasks.middleware import RunOutcome as RunOutcome
    from emsworker.tasks.options import HandlerOptions as HandlerOptions
    from emsworker.tasks.route import Route as Route
    from emsworker.tasks.task import BoundTask as BoundTask
    from emsworker.tasks.task import PartialSignature as PartialSignature
    from emsworker.tasks.task import Signature as Signature
    from emsworker.tasks.task import Task as Task
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.app": "Ems",
            "emsworker.beat.leader": "Beat",
            "emsworker.broker.memory": "MemoryBroker",
            "emsworker.broker.mysql": "MysqlBroker",
            "emsworker.broker.port": "Broker",
            "emsworker.tasks.annotations": "UNKNOWN ResultType Types result_type_of",
            "emsworker.tasks.correlation": "CAUSATION CORRELATION",
            "emsworker.tasks.handler": "check_function full_name",
            "emsworker.tasks.middleware": "Middleware PublishBracket RunBracket RunOutcome",
            "emsworker.tasks.options": "HandlerOptions",
            "emsworker.tasks.route": "Route",
            "emsworker.tasks.task": "BoundTask PartialSignature Signature Task",
        },
    )
