"""EMS: Celery-style workers over a durable message stream in MySQL.

The public names are imported on first use, so that ``import emsworker`` (and with it ``ems --help``) stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emsworker.app import Ems as Ems
    from emsworker.consume.pull import PullConsumer as PullConsumer
    from emsworker.core.config import Settings as Settings
    from emsworker.core.errors import AccessDenied as AccessDenied
    from emsworker.core.errors import AlreadyExists as AlreadyExists
    from emsworker.core.errors import AppNotFound as AppNotFound
    from emsworker.core.errors import BatchFailed as BatchFailed
    from emsworker.core.errors import Cancelled as Cancelled
    from emsworker.core.errors import ConfigError as ConfigError
    from emsworker.core.errors import ConnectionLostInHandler as ConnectionLostInHandler
    from emsworker.core.errors import ContentRefused as ContentRefused
    from emsworker.core.errors import DecodeError as DecodeError
    from emsworker.core.errors import DeliveryFailed as DeliveryFailed
    from emsworker.core.errors import EmsError as EmsError
    from emsworker.core.errors import EncodeError as EncodeError
    from emsworker.core.errors import ExtraMissing as ExtraMissing
    from emsworker.core.errors import FenceLost as FenceLost
    from emsworker.core.errors import GroupInUse as GroupInUse
    from emsworker.core.errors import HoldTaken as HoldTaken
    from emsworker.core.errors import Ignore as Ignore
    from emsworker.core.errors import InvalidName as InvalidName
    from emsworker.core.errors import InvalidPriority as InvalidPriority
    from emsworker.core.errors import LeaseLost as LeaseLost
    from emsworker.core.errors import LoginRefused as LoginRefused
    from emsworker.core.errors import MessageTooLarge as MessageTooLarge
    from emsworker.core.errors import MoveUnfinished as MoveUnfinished
    from emsworker.core.errors import NotInHand as NotInHand
    from emsworker.core.errors import PredicateError as PredicateError
    from emsworker.core.errors import Problem as Problem
    from emsworker.core.errors import PublishTimeout as PublishTimeout
    from emsworker.core.errors import Reject as Reject
    from emsworker.core.errors import ResultTimeout as ResultTimeout
    from emsworker.core.errors import Retry as Retry
    from emsworker.core.errors import RunCancelled as RunCancelled
    from emsworker.core.errors import RunEnded as RunEnded
    from emsworker.core.errors import SchemaMissing as SchemaMissing
    from emsworker.core.errors import ServerUnsupported as ServerUnsupported
    from emsworker.core.errors import SoftTimeLimitExceeded as SoftTimeLimitExceeded
    from emsworker.core.errors import StatementRefused as StatementRefused
    from emsworker.core.errors import StoreUnavailable as StoreUnavailable
    from emsworker.core.errors import TaskFailed as TaskFailed
    from emsworker.core.errors import TimeLimitExceeded as TimeLimitExceeded
    from emsworker.core.errors import TlsError as TlsError
    from emsworker.core.errors import TopicDeleted as TopicDeleted
    from emsworker.core.errors import TopicInUse as TopicInUse
    from emsworker.core.errors import TopicMoved as TopicMoved
    from emsworker.core.errors import TopicRuleError as TopicRuleError
    from emsworker.core.errors import TransactionEnded as TransactionEnded
    from emsworker.core.errors import TransactionRolledBack as TransactionRolledBack
    from emsworker.core.errors import UnknownAlarm as UnknownAlarm
    from emsworker.core.errors import UnknownGroup as UnknownGroup
    from emsworker.core.errors import UnknownMessage as UnknownMessage
    from emsworker.core.errors import UnknownName as UnknownName
    from emsworker.core.errors import UnknownReader as UnknownReader
    from emsworker.core.errors import UnknownSchedule as UnknownSchedule
    from emsworker.core.errors import UnknownTask as UnknownTask
    from emsworker.core.errors import UnknownTopic as UnknownTopic
    from emsworker.core.errors import WorkerLost as WorkerLost
    from emsworker.core.errors import WrongArguments as WrongArguments
    from emsworker.core.model import Message as Message
    from emsworker.core.model import Receipt as Receipt
    from emsworker.core.selection.filters import Filter as Filter
    from emsworker.publish.outgoing import Outgoing as Outgoing
    from emsworker.publish.transaction import Transaction as Transaction
    from emsworker.tasks.idempotency import once as once
    from emsworker.tasks.middleware import Middleware as Middleware
    from emsworker.tasks.results import AsyncResult as AsyncResult
    from emsworker.tasks.results import ResultSet as ResultSet
    from emsworker.tasks.task import BoundTask as BoundTask
    from emsworker.tasks.task import PreparedTask as PreparedTask
    from emsworker.tasks.task import Task as Task

__version__ = "0.1.0"

_HOME = {
    "Ems": "emsworker.app",
    "PullConsumer": "emsworker.consume.pull",
    "Settings": "emsworker.core.config",
    "AccessDenied": "emsworker.core.errors",
    "LoginRefused": "emsworker.core.errors",
    "AlreadyExists": "emsworker.core.errors",
    "AppNotFound": "emsworker.core.errors",
    "BatchFailed": "emsworker.core.errors",
    "Cancelled": "emsworker.core.errors",
    "ConfigError": "emsworker.core.errors",
    "ContentRefused": "emsworker.core.errors",
    "DecodeError": "emsworker.core.errors",
    "DeliveryFailed": "emsworker.core.errors",
    "EmsError": "emsworker.core.errors",
    "EncodeError": "emsworker.core.errors",
    "ExtraMissing": "emsworker.core.errors",
    "TopicDeleted": "emsworker.core.errors",
    "TopicMoved": "emsworker.core.errors",
    "MoveUnfinished": "emsworker.core.errors",
    "TopicInUse": "emsworker.core.errors",
    "ConnectionLostInHandler": "emsworker.core.errors",
    "FenceLost": "emsworker.core.errors",
    "GroupInUse": "emsworker.core.errors",
    "HoldTaken": "emsworker.core.errors",
    "Ignore": "emsworker.core.errors",
    "InvalidName": "emsworker.core.errors",
    "InvalidPriority": "emsworker.core.errors",
    "LeaseLost": "emsworker.core.errors",
    "MessageTooLarge": "emsworker.core.errors",
    "NotInHand": "emsworker.core.errors",
    "PredicateError": "emsworker.core.errors",
    "Problem": "emsworker.core.errors",
    "PublishTimeout": "emsworker.core.errors",
    "Reject": "emsworker.core.errors",
    "ResultTimeout": "emsworker.core.errors",
    "Retry": "emsworker.core.errors",
    "RunEnded": "emsworker.core.errors",
    "RunCancelled": "emsworker.core.errors",
    "SchemaMissing": "emsworker.core.errors",
    "ServerUnsupported": "emsworker.core.errors",
    "SoftTimeLimitExceeded": "emsworker.core.errors",
    "StatementRefused": "emsworker.core.errors",
    "StoreUnavailable": "emsworker.core.errors",
    "TaskFailed": "emsworker.core.errors",
    "TimeLimitExceeded": "emsworker.core.errors",
    "TlsError": "emsworker.core.errors",
    "TopicRuleError": "emsworker.core.errors",
    "TransactionEnded": "emsworker.core.errors",
    "TransactionRolledBack": "emsworker.core.errors",
    "UnknownAlarm": "emsworker.core.errors",
    "UnknownGroup": "emsworker.core.errors",
    "UnknownMessage": "emsworker.core.errors",
    "UnknownName": "emsworker.core.errors",
    "UnknownReader": "emsworker.core.errors",
    "UnknownSchedule": "emsworker.core.errors",
    "UnknownTask": "emsworker.core.errors",
    "UnknownTopic": "emsworker.core.errors",
    "WorkerLost": "emsworker.core.errors",
    "WrongArguments": "emsworker.core.errors",
    "Filter": "emsworker.core.selection.filters",
    "Message": "emsworker.core.model",
    "Receipt": "emsworker.core.model",
    "Middleware": "emsworker.tasks.middleware",
    "once": "emsworker.tasks.idempotency",
    "Outgoing": "emsworker.publish.outgoing",
    "AsyncResult": "emsworker.tasks.results",
    "BoundTask": "emsworker.tasks.task",
    "PreparedTask": "emsworker.tasks.task",
    "ResultSet": "emsworker.tasks.results",
    "Task": "emsworker.tasks.task",
    "Transaction": "emsworker.publish.transaction",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'emsworker' has no attribute {name!r}") from None
    return getattr(import_module(home), name)
