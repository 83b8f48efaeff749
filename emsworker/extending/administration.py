"""Administration as a library: topics, groups, messages, dead letters, alarms, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.admin import Admin as Admin
    from emsworker.admin import Selection as Selection
    from emsworker.admin import SkipPolicy as SkipPolicy
    from emsworker.admin import StoredMessage as StoredMessage
    from emsworker.admin import parse_place as parse_place
    from emsworker.admin.alarms import Watched as Watched
    from emsworker.admin.audit import CANCEL as CANCEL
    from emsworker.admin.audit import Audit as Audit
    from emsworker.admin.audit import cancel_target as cancel_target
    from emsworker.admin.audit import count_cancelled as count_cancelled
    from emsworker.admin.audit import count_changed as count_changed
    from emsworker.admin.check import Finding as Finding
    from emsworker.admin.check import Severity as Severity
    from emsworker.admin.check import check as check
    from emsworker.admin.dead import DeadEntry as DeadEntry
    from emsworker.admin.dead import DeadFilter as DeadFilter
    from emsworker.admin.demand import Demands as Demands
    from emsworker.admin.group_states import GroupState as GroupState
    from emsworker.admin.group_states import GroupStatus as GroupStatus
    from emsworker.admin.lists import MessageOutline as MessageOutline
    from emsworker.admin.lists import Running as Running
    from emsworker.admin.lists import WaitingRetry as WaitingRetry
    from emsworker.admin.message_states import list_states as list_states
    from emsworker.admin.messages import BEGINNING_BYTES as BEGINNING_BYTES
    from emsworker.admin.monitoring import ClientView as ClientView
    from emsworker.admin.monitoring import GroupLag as GroupLag
    from emsworker.admin.monitoring import GroupTrace as GroupTrace
    from emsworker.admin.monitoring import Monitoring as Monitoring
    from emsworker.admin.monitoring import TopicSize as TopicSize
    from emsworker.admin.monitoring import Trace as Trace
    from emsworker.admin.monitoring import TraceState as TraceState
    from emsworker.admin.operators import check_operator as check_operator
    from emsworker.admin.paging import Listing as Listing
    from emsworker.admin.paging import decode_token as decode_token
    from emsworker.admin.paging import encode_token as encode_token
    from emsworker.admin.readers import HoldView as HoldView
    from emsworker.admin.servers import Servers as Servers
    from emsworker.admin.servers import ServerView as ServerView
    from emsworker.admin.servers import look as look
    from emsworker.admin.standing import GroupStanding as GroupStanding
    from emsworker.admin.standing import Standings as Standings
    from emsworker.admin.standing import TopicStanding as TopicStanding
    from emsworker.admin.tasks import TaskView as TaskView
    from emsworker.core.scaling import Demand as Demand
    from emsworker.observe.bounded import BoundedNames as BoundedNames
    from emsworker.observe.http import METRICS as METRICS
    from emsworker.observe.http import OUT_OF_RESOURCES as OUT_OF_RESOURCES
    from emsworker.observe.http import Answer as Answer
    from emsworker.observe.http import HttpRequest as HttpRequest
    from emsworker.observe.http import Route as Route
    from emsworker.observe.logs import configure_logging as configure_logging
    from emsworker.observe.scaling import ANSWER_S as ANSWER_S
    from emsworker.observe.scaling import Scaling as Scaling
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.admin": "Admin Selection SkipPolicy StoredMessage parse_place",
            "emsworker.admin.alarms": "Watched",
            "emsworker.admin.audit": "Audit CANCEL cancel_target count_cancelled count_changed",
            "emsworker.admin.check": "Finding Severity check",
            "emsworker.admin.dead": "DeadEntry DeadFilter",
            "emsworker.admin.demand": "Demands",
            "emsworker.admin.group_states": "GroupState GroupStatus",
            "emsworker.admin.lists": "MessageOutline Running WaitingRetry",
            "emsworker.admin.message_states": "list_states",
            "emsworker.admin.messages": "BEGINNING_BYTES",
            "emsworker.admin.monitoring": "ClientView GroupLag GroupTrace Monitoring TopicSize Trace TraceState",
            "emsworker.admin.operators": "check_operator",
            "emsworker.admin.paging": "Listing decode_token encode_token",
            "emsworker.admin.readers": "HoldView",
            "emsworker.admin.servers": "ServerView Servers look",
            "emsworker.admin.standing": "GroupStanding Standings TopicStanding",
            "emsworker.admin.tasks": "TaskView",
            "emsworker.core.scaling": "Demand",
            "emsworker.observe.bounded": "BoundedNames",
            "emsworker.observe.http": "Answer HttpRequest METRICS OUT_OF_RESOURCES Route",
            "emsworker.observe.logs": "configure_logging",
            "emsworker.observe.scaling": "ANSWER_S Scaling",
        },
    )
