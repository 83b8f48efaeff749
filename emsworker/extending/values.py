"""Plain values and decisions: messages, topics, groups, filters, times, codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.core import errors as errors
    from emsworker.core.alarms import STREAM as STREAM
    from emsworker.core.alarms import TARGETS as TARGETS
    from emsworker.core.alarms import Alarm as Alarm
    from emsworker.core.alarms import AnyMetric as AnyMetric
    from emsworker.core.alarms import ExtensionMetric as ExtensionMetric
    from emsworker.core.alarms import Metric as Metric
    from emsworker.core.alarms import Rule as Rule
    from emsworker.core.alarms import Silence as Silence
    from emsworker.core.alarms import find_metric as find_metric
    from emsworker.core.alarms import parse_share as parse_share
    from emsworker.core.batches import in_batches as in_batches
    from emsworker.core.budget import Budget as Budget
    from emsworker.core.budget import count_marks as count_marks
    from emsworker.core.codec import COMPRESSION as COMPRESSION
    from emsworker.core.codec import CONTENT_ENCODING as CONTENT_ENCODING
    from emsworker.core.codec import CONTENT_TYPE as CONTENT_TYPE
    from emsworker.core.codec import Decoder as Decoder
    from emsworker.core.codec import check_encoding as check_encoding
    from emsworker.core.codec import decode_headers as decode_headers
    from emsworker.core.codec import encode_headers as encode_headers
    from emsworker.core.codec import encode_json as encode_json
    from emsworker.core.codec import is_accepted as is_accepted
    from emsworker.core.codec import unpack as unpack
    from emsworker.core.counted import AtLeast as AtLeast
    from emsworker.core.counted import Estimate as Estimate
    from emsworker.core.counted import counted as counted
    from emsworker.core.counted import plural as plural
    from emsworker.core.durations import LONGEST_S as LONGEST_S
    from emsworker.core.durations import format_duration as format_duration
    from emsworker.core.durations import parse_duration as parse_duration
    from emsworker.core.durations import span_text as span_text
    from emsworker.core.flush import ResultRow as ResultRow
    from emsworker.core.flush import storable as storable
    from emsworker.core.ids import MAX_KEY_BYTES as MAX_KEY_BYTES
    from emsworker.core.ids import TASK_NAME as TASK_NAME
    from emsworker.core.ids import check_name as check_name
    from emsworker.core.ids import encode_key as encode_key
    from emsworker.core.ids import local_ip as local_ip
    from emsworker.core.ids import new_uid as new_uid
    from emsworker.core.ids import parse_uid as parse_uid
    from emsworker.core.ids import short_client as short_client
    from emsworker.core.ids import uid_text as uid_text
    from emsworker.core.ladder import DEFAULT_LADDER as DEFAULT_LADDER
    from emsworker.core.ladder import Dead as Dead
    from emsworker.core.ladder import Ladder as Ladder
    from emsworker.core.model import FOLLOW_HEADER as FOLLOW_HEADER
    from emsworker.core.model import GROUP_HEADER as GROUP_HEADER
    from emsworker.core.model import PRIORITY_HEADER as PRIORITY_HEADER
    from emsworker.core.model import SLOT_HEADER as SLOT_HEADER
    from emsworker.core.model import TASK_HEADER as TASK_HEADER
    from emsworker.core.model import UNLIMITED_S as UNLIMITED_S
    from emsworker.core.model import Group as Group
    from emsworker.core.model import Message as Message
    from emsworker.core.model import NewMessage as NewMessage
    from emsworker.core.model import Order as Order
    from emsworker.core.model import Outcome as Outcome
    from emsworker.core.model import Receipt as Receipt
    from emsworker.core.model import Topic as Topic
    from emsworker.core.model import TopicKind as TopicKind
    from emsworker.core.model import priority_header as priority_header
    from emsworker.core.model import priority_of as priority_of
    from emsworker.core.offsets import OffsetRange as OffsetRange
    from emsworker.core.partitioner import MAX_PARTITIONS as MAX_PARTITIONS
    from emsworker.core.partitioner import level_of as level_of
    from emsworker.core.partitioner import partition_number as partition_number
    from emsworker.core.partitioner import partition_of as partition_of
    from emsworker.core.preview import PreviewDecoder as PreviewDecoder
    from emsworker.core.priority import level_below as level_below
    from emsworker.core.priority import level_for as level_for
    from emsworker.core.priority import levels_of as levels_of
    from emsworker.core.selection.filters import EVERYTHING as EVERYTHING
    from emsworker.core.selection.filters import Filter as Filter
    from emsworker.core.selection.parser import parse_time as parse_time
    from emsworker.core.terminal_text import escape_control as escape_control
    from emsworker.core.terminal_text import in_utf8 as in_utf8
    from emsworker.core.times import NO_TIME as NO_TIME
    from emsworker.core.times import in_utc as in_utc
    from emsworker.core.times import utc as utc
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.core": "errors",
            "emsworker.core.alarms": "Alarm AnyMetric ExtensionMetric Metric Rule STREAM Silence TARGETS "
            "find_metric parse_share",
            "emsworker.core.batches": "in_batches",
            "emsworker.core.budget": "Budget count_marks",
            "emsworker.core.codec": "COMPRESSION CONTENT_ENCODING CONTENT_TYPE Decoder check_encoding "
            "decode_headers encode_headers encode_json is_accepted unpack",
            "emsworker.core.counted": "AtLeast Estimate counted plural",
            "emsworker.core.durations": "LONGEST_S format_duration parse_duration span_text",
            "emsworker.core.flush": "ResultRow storable",
            "emsworker.core.ids": "MAX_KEY_BYTES TASK_NAME check_name encode_key local_ip new_uid "
            "parse_uid short_client uid_text",
            "emsworker.core.ladder": "DEFAULT_LADDER Dead Ladder",
            "emsworker.core.model": "FOLLOW_HEADER GROUP_HEADER Group Message NewMessage Order Outcome "
            "PRIORITY_HEADER Receipt SLOT_HEADER TASK_HEADER Topic TopicKind "
            "UNLIMITED_S priority_header priority_of",
            "emsworker.core.offsets": "OffsetRange",
            "emsworker.core.partitioner": "MAX_PARTITIONS level_of partition_number partition_of",
            "emsworker.core.preview": "PreviewDecoder",
            "emsworker.core.priority": "level_below level_for levels_of",
            "emsworker.core.selection.filters": "EVERYTHING Filter",
            "emsworker.core.selection.parser": "parse_time",
            "emsworker.core.terminal_text": "escape_control in_utf8",
            "emsworker.core.times": "NO_TIME in_utc utc",
        },
    )
