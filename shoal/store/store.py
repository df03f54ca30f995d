"""The store as one thing: every part over one database."""

from __future__ import annotations

from types import TracebackType

from shoal.store.attempts import Attempts
from shoal.store.captures import Captures
from shoal.store.database import connect
from shoal.store.directives import Directives
from shoal.store.goods import Goods
from shoal.store.jobs import Jobs
from shoal.store.leases import Leases
from shoal.store.life import Life
from shoal.store.line import Line
from shoal.store.people import People
from shoal.store.ranks import Ranks
from shoal.store.schema import prepare
from shoal.store.webhooks import Webhooks


class Store(Jobs, Line, Life, Attempts, Ranks, Captures, Directives, Leases, People, Goods, Webhooks):
    """Everything Shoal remembers. Each method is one short transaction, may be called from any thread, and blocks.

    Raises StoreError when the database cannot be used: what happened, to which one, what to do next.
    """

    @classmethod
    def open(cls, url: str, create: bool = True) -> Store:
        """The store at `sqlite:////absolute/file` or `postgresql+psycopg://…`, brought to the newest revision first.

        Without `create`, a database that is not there or empty is an error instead of a new one.
        """
        database = connect(url, create)
        try:
            prepare(database, create)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def dialect(self) -> str:
        return self._database.dialect

    def close(self) -> None:
        """Closes the connections; twice is no error."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
