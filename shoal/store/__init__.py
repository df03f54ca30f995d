"""Everything Shoal remembers: jobs and their lives, gangs, leases, people, goods, alarms. SQLite or PostgreSQL.

The only package that knows SQL. What comes out are frozen values; what goes wrong with the database is a StoreError.
"""

from shoal.store.paging import Page
from shoal.store.records import (
    Attempt,
    Delivery,
    EventRow,
    InputRow,
    JobLine,
    Lease,
    RankRow,
    Shepherd,
    Token,
    User,
    Webhook,
)
from shoal.store.store import Store

__all__ = [
    "Attempt",
    "Delivery",
    "EventRow",
    "InputRow",
    "JobLine",
    "Lease",
    "Page",
    "RankRow",
    "Shepherd",
    "Store",
    "Token",
    "User",
    "Webhook",
]
