"""The database's history: every revision ever shipped, oldest first. A database at any other is newer than this Shoal."""

REVISIONS = ("0001",)
HEAD = REVISIONS[-1]
