"""Names of OpenTelemetry's conventions for messaging, and our own beside them.

They are those of version 1.44 of the semantic conventions, where messaging has the status *Development*: names may
change with a later version, and then they change here only.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM_NAME: Final = "ems"

# -- attributes of the conventions -------------------------------------------------------------------------------------

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"

SEND: Final = "send"
PROCESS: Final = "process"

# -- attributes of our own ---------------------------------------------------------------------------------------------

OFFSET: Final = "ems.offset"
TASK: Final = "ems.task"
ATTEMPT: Final = "ems.attempt"
OUTCOME: Final = "ems.outcome"
COMMITTED: Final = "ems.committed"
MIXED: Final = "mixed"  # the outcome of a batch whose messages ended in different ways

# -- metrics -----------------------------------------------------------------------------------------------------------

OPERATION_DURATION: Final = "messaging.client.operation.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"
WAIT: Final = "ems.message.wait"
DEAD: Final = "ems.dead"

# The conventions' bounds of the durations, and bounds for waits, which may be long.
DURATION_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
WAIT_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
