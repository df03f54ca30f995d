"""Each user's webhook: where his alarms go, what was delivered, and a way to try it."""

from __future__ import annotations

import secrets

from fastapi import APIRouter
from starlette.responses import Response

from shoal._lib import clock
from shoal.control.alarms import check_url
from shoal.control.people import User
from shoal.errors import NotFound
from shoal.server import shapes
from shoal.server.routing import Asker, Here, as_json
from shoal.server.service import Service
from shoal.store import Webhook

router = APIRouter(prefix="/webhook", tags=["webhook"])


@router.get("", response_model=shapes.WebhookShape)
async def show(service: Here, user: Asker) -> Response:
    """Without its secret, which was shown when it was set."""
    hook = await service.call(_hook, service, user)
    return as_json({"url": hook.url, "kinds": hook.kinds, "created_at": hook.created_at})


@router.put("", response_model=shapes.WebhookShape)
async def put(body: shapes.WebhookRequest, service: Here, user: Asker) -> Response:
    """Sets the one webhook of the caller. The secret signs what is sent; it is shown this once."""
    check_url(body.url)
    secret = body.secret or secrets.token_urlsafe(32)
    kinds, now = tuple(dict.fromkeys(body.kinds)), clock.now()
    await service.call(service.store.set_webhook, user.name, body.url, secret, kinds, now)
    return as_json({"url": body.url, "kinds": kinds, "created_at": now, "secret": secret})


@router.delete("", status_code=204)
async def remove(service: Here, user: Asker) -> Response:
    await service.call(service.store.remove_webhook, user.name)
    return Response(status_code=204)


@router.get("/deliveries", response_model=shapes.DeliveryPage)
async def deliveries(service: Here, user: Asker, limit: int = 50, cursor: str | None = None) -> Response:
    """What was sent, the newest first: how often it was tried, and what came back."""
    page = await service.call(service.store.deliveries, user.name, limit, cursor)
    return as_json({"deliveries": page.items, "next": page.next})


@router.post("/test", status_code=202)
async def test(service: Here, user: Asker) -> Response:
    """Sends a test alarm; see the deliveries for what became of it."""
    await service.call(_enqueue_test, service, user)
    service.alarms.wake()
    return as_json({"queued": True}, 202)


def _enqueue_test(service: Service, user: User) -> None:
    _hook(service, user)
    payload = {"kind": "test", "owner": user.name, "message": "This is a test of your webhook."}
    service.store.enqueue_delivery(user.name, "test", payload, clock.now())


def _hook(service: Service, user: User) -> Webhook:
    hook = service.store.webhook(user.name)
    if hook is None:
        raise NotFound("you have no webhook; set one with 'shoal alert set URL'")
    return hook
