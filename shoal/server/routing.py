"""What every route shares: the service, who asks, and answers as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic_core import to_json
from starlette.responses import Response

from shoal.control.people import User
from shoal.errors import NotAllowed, NotSignedIn
from shoal.server.door import USER
from shoal.server.service import Service


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _user(request: Request) -> User:
    user: User | None = request.scope[USER]
    if user is None:
        raise NotSignedIn("no token came with the request; sign in with 'shoal token new'")
    return user


async def _admin(user: Annotated[User, Depends(_user)]) -> User:
    if not user.admin:
        raise NotAllowed(f"only an administrator may do this, and {user.name!r} is none")
    return user


Here = Annotated[Service, Depends(_service)]
Asker = Annotated[User, Depends(_user)]
Admin = Annotated[User, Depends(_admin)]


def rank_names(text: str) -> list[str] | None:
    """`worker-0,server-1` as a list; a number alone means that worker. None for all."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [f"worker-{word}" if word.isdigit() else word for word in words] or None


def as_json(content: Any, status: int = 200) -> Response:
    """JSON without a model in between: dataclasses and plain data, as fast as it goes."""
    return Response(to_json(content, inf_nan_mode="null"), status, media_type="application/json")
