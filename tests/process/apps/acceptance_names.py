"""Names that the acceptance app and its test share; importing the app itself would need its environment."""

TOPICS = ("north", "south", "west")
GROUPS = ("audit", "books", "cash")  # cash is transactional
