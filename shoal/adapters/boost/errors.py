"""What is wrong with the user's data or parameters, in words for him; it ends the process without a traceback."""

from __future__ import annotations

from shoal.errors import BadSpec


class BadData(BadSpec):
    """Rows that cannot be trained from, or parameters that the trainer does not know."""

    code = "bad_data"
