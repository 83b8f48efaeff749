"""What each role may do with the notes."""

from emsworker.extending.declaration import read_grid

RIGHTS = read_grid(
    """
               beat  viewer  reader  operator
    acme_note  sD    S       S       SID
    """,
    {"SELECT acme_note": {"beat": "id, expires_at"}},
)
