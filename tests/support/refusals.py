"""What servers of a cluster say when they cannot serve, word by word; and a number that nobody has heard of."""

from tests.support.proxy import Refusal

CONFLICTS = [
    Refusal(3101, "Plugin instructed the server to rollback the current transaction.", "40000"),
    Refusal(1180, "Got error 149 - 'Lock deadlock; Retry transaction' during COMMIT"),
    Refusal(1213, "Deadlock: wsrep aborted transaction", "40001"),
    Refusal(1205, "Lock wait timeout exceeded; try restarting transaction"),
    Refusal(1020, "Record has changed since last read in table 'ems_cursor'"),
]
AWAY = [
    Refusal(3100, "Error on observer while running replication hook 'before_commit'."),
    Refusal(1047, "WSREP has not yet prepared node for application use", "08S01"),
    Refusal(1180, "Got error 6 - 'Not connected to Primary Component' during COMMIT"),
    Refusal(1290, "The MySQL server is running with the --super-read-only option so it cannot execute this statement"),
    Refusal(1836, "Running in read-only mode"),
]
UNHEARD_OF = [Refusal(9876, "no version of this library has heard of it")]
ALL = [*CONFLICTS, *AWAY, *UNHEARD_OF]


def name_of(refusal: Refusal) -> str:
    """The name of a test's parameter."""
    return f"{refusal.number}-{refusal.text.split(' - ')[0].split()[-1].strip(chr(39))}"
