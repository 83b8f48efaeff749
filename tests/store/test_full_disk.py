"""What a full disk makes the server say is no fault of a message or a program: it passes when there is room again."""

import pymysql.err
import pytest

from emsworker.core.errors import ConnectionLost
from emsworker.store.engine.errors import translate


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1114, "The table 'ems_message' is full"),
        (
            1021,
            'Disk full (/tmp/#sql); waiting for someone to free some space... (errno: 28 "No space left on device")',
        ),
        (1026, "Error writing file './ems/#sql' (errno: 28 \"No space left on device\")"),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB'),
        (1180, "Got error 28 - 'No space left on device' during COMMIT"),
        (3, "Error writing file '/tmp/MLfd=10' (OS errno 28 - No space left on device)"),
    ],
)
def test_a_full_disk_is_waited_out_and_says_what_to_do(code: int, text: str) -> None:
    meaning = translate(pymysql.err.OperationalError(code, text))
    assert isinstance(meaning, ConnectionLost)
    assert str(meaning).startswith(f"({code}) {text}")
    assert str(meaning).endswith("Make room, and all goes on")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1030, "Got error 168 - 'Unknown (generic) error from engine' from storage engine"),
        (1026, "Error writing file './ems/128' (errno: 5 \"Input/output error\")"),
    ],
)
def test_other_errors_of_these_numbers_do_not_speak_of_the_disk(code: int, text: str) -> None:
    meaning = translate(pymysql.err.OperationalError(code, text))
    assert isinstance(meaning, ConnectionLost) and str(meaning) == f"({code}) {text}"
