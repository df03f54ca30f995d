"""The database's history: every revision ever shipped, oldest first. One that is not here is newer than this Shoal."""

REVISIONS = ("0001", "0002")
HEAD = REVISIONS[-1]
