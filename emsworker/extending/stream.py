"""The stream in the database: topics, messages, groups, readers, and what is kept about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.core.schedule import ScheduleRow as ScheduleRow
    from emsworker.store import topics as topics
    from emsworker.store.cluster import alarms as alarms
    from emsworker.store.cluster import clients as clients
    from emsworker.store.cluster.clients import LeaderRow as LeaderRow
    from emsworker.store.groups import backlog as backlog
    from emsworker.store.groups import putback as putback
    from emsworker.store.groups import skipping as skipping
    from emsworker.store.groups.cancel import cancel as cancel
    from emsworker.store.groups.claims import find_new as find_new
    from emsworker.store.groups.dead import delete_dead as delete_dead
    from emsworker.store.groups.dead import requeue as requeue
    from emsworker.store.groups.putback import PutBack as PutBack
    from emsworker.store.groups.putback import Row as Row
    from emsworker.store.groups.replay import Replayed as Replayed
    from emsworker.store.groups.skipping import SkipPolicy as SkipPolicy
    from emsworker.store.inspect import quality as quality
    from emsworker.store.inspect import snapshot as snapshot
    from emsworker.store.inspect.latest import GroupChoice as GroupChoice
    from emsworker.store.inspect.samples import SamplePoint as SamplePoint
    from emsworker.store.inspect.snapshot import ClaimSnapshot as ClaimSnapshot
    from emsworker.store.inspect.snapshot import Snapshot as Snapshot
    from emsworker.store.inspect.snapshot import read_snapshot as read_snapshot
    from emsworker.store.inspect.trace import AttemptRow as AttemptRow
    from emsworker.store.stream import broadcast as broadcast
    from emsworker.store.stream import holds as holds
    from emsworker.store.stream import retention as retention
    from emsworker.store.stream.broadcast import ReaderRow as ReaderRow
    from emsworker.store.stream.columns import MESSAGE as MESSAGE
    from emsworker.store.stream.dedup import is_unfinished as is_unfinished
    from emsworker.store.stream.guards import kept_topic_id_text as kept_topic_id_text
    from emsworker.store.stream.guards import topic_id_text as topic_id_text
    from emsworker.store.stream.holds import HOLD_FOR_S as HOLD_FOR_S
    from emsworker.store.stream.holds import Hold as Hold
    from emsworker.store.stream.holes import find_hole as find_hole
    from emsworker.store.stream.intake import count_refused as count_refused
    from emsworker.store.stream.messages import close_hole_at as close_hole_at
    from emsworker.store.stream.messages import fitting_body as fitting_body
    from emsworker.store.stream.messages import raise_counter as raise_counter
    from emsworker.store.stream.outbox import insert_text as insert_text
    from emsworker.store.stream.retention import Kept as Kept
    from emsworker.store.stream.search import read_sent as read_sent
    from emsworker.store.topics import get_topic as get_topic
    from emsworker.store.topics import list_groups as list_groups
    from emsworker.store.topics import list_topics as list_topics
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.core.schedule": "ScheduleRow",
            "emsworker.store": "topics",
            "emsworker.store.cluster": "alarms clients",
            "emsworker.store.cluster.clients": "LeaderRow",
            "emsworker.store.groups": "backlog putback skipping",
            "emsworker.store.groups.cancel": "cancel",
            "emsworker.store.groups.claims": "find_new",
            "emsworker.store.groups.dead": "delete_dead requeue",
            "emsworker.store.groups.putback": "PutBack Row",
            "emsworker.store.groups.replay": "Replayed",
            "emsworker.store.groups.skipping": "SkipPolicy",
            "emsworker.store.inspect": "quality snapshot",
            "emsworker.store.inspect.latest": "GroupChoice",
            "emsworker.store.inspect.samples": "SamplePoint",
            "emsworker.store.inspect.snapshot": "ClaimSnapshot Snapshot read_snapshot",
            "emsworker.store.inspect.trace": "AttemptRow",
            "emsworker.store.stream": "broadcast holds retention",
            "emsworker.store.stream.broadcast": "ReaderRow",
            "emsworker.store.stream.columns": "MESSAGE",
            "emsworker.store.stream.dedup": "is_unfinished",
            "emsworker.store.stream.guards": "kept_topic_id_text topic_id_text",
            "emsworker.store.stream.holds": "HOLD_FOR_S Hold",
            "emsworker.store.stream.holes": "find_hole",
            "emsworker.store.stream.intake": "count_refused",
            "emsworker.store.stream.messages": "close_hole_at fitting_body raise_counter",
            "emsworker.store.stream.outbox": "insert_text",
            "emsworker.store.stream.retention": "Kept",
            "emsworker.store.stream.search": "read_sent",
            "emsworker.store.topics": "get_topic list_groups list_topics",
        },
    )
