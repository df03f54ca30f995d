"""Alarms on their way: signed webhook deliveries, tried again with growing pauses, every try written down.

The receiver checks `Shoal-Signature: t=<unix time>,v1=<hex>`, where hex is the HMAC-SHA256 of `<t>.<body>` under the
webhook's secret, and drops what it has seen before by `Shoal-Delivery`: a delivery whose answer was lost comes again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from shoal._lib import clock
from shoal._lib.backoff import delay
from shoal._lib.ids import short_id
from shoal.errors import BadRequest
from shoal.store import Delivery, Lease, Store

if TYPE_CHECKING:
    import httpx

MOST_TRIES = 8
FIRST_PAUSE = 30.0  # seconds; doubled each time, so that the last try is about an hour after the first
LONGEST_PAUSE = 1920.0
TIMEOUT = 10.0  # seconds for one try
ROUND = 2.0  # seconds between looks when nobody rings
AT_ONCE = 8  # deliveries under way together
LEASE = "alarms"
LEASE_SECONDS = 60.0

T = TypeVar("T")
log = logging.getLogger("shoal.control")


def check_url(url: str) -> None:
    """BadRequest unless it is a web address that something can be sent to."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in url):
        raise BadRequest(f"{url[:200]!r} is not an address to send to; give one that begins with https:// or http://")


def sign(secret: str, at: int, body: bytes) -> str:
    """The value of `Shoal-Signature`."""
    return f"t={at},v1={hmac.new(secret.encode(), b'%d.' % at + body, sha256).hexdigest()}"


def pause_after(tries: int) -> float | None:
    """Seconds until the next try after `tries` failures; None when it is given up."""
    return None if tries >= MOST_TRIES else delay(tries - 1, FIRST_PAUSE, LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one try."""

    ok: bool
    status: int | None
    error: str | None
    again: bool = True  # whether a failure is worth another try


class Alarms:
    """One per server; of several on one database, the one with the lease sends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holder = short_id()
        self._lease: Lease | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="alarms")
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Looks at once instead of at the next round; from the event loop only."""
        self._woken.set()

    async def run(self) -> None:
        """Sends what is due until cancelled; an unforeseen error is logged and the next round goes on."""
        try:
            while True:
                self._woken.clear()
                try:
                    await self.send_due()
                except Exception:
                    log.exception("alarms could not be sent; the next round tries again")
                await self._pause()
        finally:
            if self._lease is not None:
                await asyncio.shield(self._call(self._store.release, self._lease))
            self._threads.shutdown(wait=False)

    async def send_due(self) -> int:
        """One round; returns how many were tried."""
        due = await self._call(self._store.due_deliveries, clock.now(), 100)
        if not due:
            return 0
        self._lease = await self._call(self._store.lease, LEASE, self._holder, LEASE_SECONDS)
        if self._lease is None:
            return 0
        # Imported when the first alarm goes out: most servers never send one.
        import httpx

        slots = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(timeout=TIMEOUT, follow_redirects=False, trust_env=False) as client:
            await asyncio.gather(*(self._deliver(client, delivery, slots) for delivery in due[: 4 * AT_ONCE]))
        return len(due)

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), ROUND)
        except TimeoutError:
            pass

    async def _deliver(self, client: httpx.AsyncClient, delivery: Delivery, slots: asyncio.Semaphore) -> None:
        async with slots:
            outcome = await self._try(client, delivery)
        now = clock.now()
        wait = pause_after(delivery.tries + 1) if outcome.again and not outcome.ok else None
        next_at = None if wait is None else now + wait
        await self._call(
            self._store.mark_delivery, delivery.id, outcome.ok, outcome.status, outcome.error, next_at, now
        )

    async def _try(self, client: httpx.AsyncClient, delivery: Delivery) -> Outcome:
        hook = await self._call(self._store.webhook, delivery.owner)
        if hook is None:
            return Outcome(False, None, "the webhook was removed before this could be sent", again=False)
        body = json.dumps(delivery.payload).encode()
        return await post(client, hook.url, body, headers_for(hook.secret, delivery, body))

    async def _call(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)


def headers_for(secret: str, delivery: Delivery, body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "user-agent": "Shoal",
        "shoal-event": delivery.kind,
        "shoal-delivery": str(delivery.id),
        "shoal-signature": sign(secret, int(clock.now()), body),
    }


async def post(client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str]) -> Outcome:
    """One try. The answer's body is not read: only the status counts, and it may be endless."""
    import httpx

    try:
        async with asyncio.timeout(TIMEOUT), client.stream("POST", url, content=body, headers=headers) as answer:
            status = answer.status_code
    except TimeoutError:
        return Outcome(False, None, f"no answer within {TIMEOUT:.0f} s")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as wrong:
        return Outcome(False, None, f"{type(wrong).__name__}: {wrong}"[:500])
    except Exception as wrong:  # whatever an address can do to a library must not keep others' alarms from leaving
        log.warning("an alarm could not be sent: %s", type(wrong).__name__)
        return Outcome(False, None, f"it could not be sent: {type(wrong).__name__}", again=False)
    if 200 <= status < 300:
        return Outcome(True, status, None)
    hint = "; redirects are not followed, set the final address" if 300 <= status < 400 else ""
    return Outcome(False, status, f"answered {status}{hint}")
