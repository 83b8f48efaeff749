"""The errors of EMS, and those of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.core.errors import INTERRUPTIONS as INTERRUPTIONS
    from emsworker.core.errors import REFUSED as REFUSED
    from emsworker.core.errors import AccessDenied as AccessDenied
    from emsworker.core.errors import AppNotFound as AppNotFound
    from emsworker.core.errors import AssertionBroken as AssertionBroken
    from emsworker.core.errors import ConfigError as ConfigError
    from emsworker.core.errors import Conflict as Conflict
    from emsworker.core.errors import ConnectionLost as ConnectionLost
    from emsworker.core.errors import DecodeError as DecodeError
    from emsworker.core.errors import DeliveryFailed as DeliveryFailed
    from emsworker.core.errors import DiskFull as DiskFull
    from emsworker.core.errors import Duplicate as Duplicate
    from emsworker.core.errors import EmsError as EmsError
    from emsworker.core.errors import EncodeError as EncodeError
    from emsworker.core.errors import ExtraMissing as ExtraMissing
    from emsworker.core.errors import FenceLost as FenceLost
    from emsworker.core.errors import Ignore as Ignore
    from emsworker.core.errors import InvalidName as InvalidName
    from emsworker.core.errors import LeaseLost as LeaseLost
    from emsworker.core.errors import MessageTooLarge as MessageTooLarge
    from emsworker.core.errors import NotInHand as NotInHand
    from emsworker.core.errors import Problem as Problem
    from emsworker.core.errors import PublishTimeout as PublishTimeout
    from emsworker.core.errors import Reject as Reject
    from emsworker.core.errors import ResultTimeout as ResultTimeout
    from emsworker.core.errors import Retry as Retry
    from emsworker.core.errors import SchemaMissing as SchemaMissing
    from emsworker.core.errors import SoftTimeLimitExceeded as SoftTimeLimitExceeded
    from emsworker.core.errors import StatementRefused as StatementRefused
    from emsworker.core.errors import StoreError as StoreError
    from emsworker.core.errors import StoreUnavailable as StoreUnavailable
    from emsworker.core.errors import TlsError as TlsError
    from emsworker.core.errors import TopicDeleted as TopicDeleted
    from emsworker.core.errors import TopicMoved as TopicMoved
    from emsworker.core.errors import TopicRuleError as TopicRuleError
    from emsworker.core.errors import TransactionRolledBack as TransactionRolledBack
    from emsworker.core.errors import UnknownAlarm as UnknownAlarm
    from emsworker.core.errors import UnknownGroup as UnknownGroup
    from emsworker.core.errors import UnknownMessage as UnknownMessage
    from emsworker.core.errors import UnknownTask as UnknownTask
    from emsworker.core.errors import UnknownTopic as UnknownTopic
    from emsworker.core.errors import WrongArguments as WrongArguments
    from emsworker.core.errors import error_line as error_line
    from emsworker.core.errors import is_known as is_known
    from emsworker.core.errors import repr_of as repr_of
    from emsworker.core.errors import text_of as text_of
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.core.errors": "AccessDenied AppNotFound AssertionBroken ConfigError Conflict "
            "ConnectionLost DecodeError DeliveryFailed DiskFull Duplicate EmsError "
            "EncodeError ExtraMissing FenceLost INTERRUPTIONS Ignore InvalidName LeaseLost "
            "MessageTooLarge NotInHand Problem PublishTimeout REFUSED Reject "
            "ResultTimeout Retry SchemaMissing SoftTimeLimitExceeded "
            "StatementRefused StoreError StoreUnavailable TlsError TopicDeleted "
            "TopicMoved TopicRuleError TransactionRolledBack UnknownAlarm "
            "UnknownGroup UnknownMessage UnknownTask UnknownTopic WrongArguments "
            "error_line is_known repr_of text_of",
        },
    )
