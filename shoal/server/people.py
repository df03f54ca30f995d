"""Users and tokens over HTTP: who there is, who one is, and how one signs in."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal._lib import clock
from shoal.control.people import User
from shoal.errors import BadRequest, Conflict, NotAllowed, NotFound, NotSignedIn
from shoal.server import passwords, shapes
from shoal.server.auth import mint
from shoal.server.door import USER
from shoal.server.routing import Admin, Asker, Here, as_json
from shoal.server.service import Service

router = APIRouter(tags=["people"])


@router.get("/whoami", response_model=shapes.UserShape)
async def whoami(user: Asker) -> Response:
    return as_json({"name": user.name, "admin": user.admin})


@router.get("/users")
async def list_users(service: Here, admin: Admin) -> Response:
    users = await service.call(service.store.users)
    return as_json({"users": [{"name": u.name, "admin": u.admin, "created_at": u.created_at} for u in users]})


@router.post("/users", status_code=201, response_model=shapes.UserShape)
async def add_user(body: shapes.NewUser, service: Here, admin: Admin) -> Response:
    """A new user; without a password he signs in with tokens an administrator makes for him."""
    if body.name == "me":
        raise BadRequest("a user cannot be called 'me', which means one's own pool; choose another name")
    hashed = None
    if body.password is not None:
        async with service.hashing:
            hashed = await service.call(passwords.hash_password, body.password)
    now = clock.now()
    await service.call(service.store.add_user, body.name, hashed, body.admin, now)
    return as_json({"name": body.name, "admin": body.admin, "created_at": now}, 201)


@router.delete("/users/{name}", status_code=204)
async def remove_user(name: str, service: Here, admin: Admin) -> Response:
    """Removes a user and all his tokens; his jobs stay."""
    if name == admin.name:
        raise Conflict("you cannot remove yourself; let another administrator do it")
    await service.call(service.store.remove_user, name)
    service.guard.forget()
    return Response(status_code=204)


@router.get("/tokens")
async def list_tokens(service: Here, user: Asker, of: str | None = None) -> Response:
    """One's own tokens without their secrets; an administrator may ask for another's, or with `*` for all."""
    if of not in (None, user.name) and not user.admin:
        raise NotAllowed("only an administrator sees the tokens of others")
    wanted = None if of == "*" else of or user.name
    found = await service.call(service.store.tokens, wanted)
    shown = ("id", "user", "label", "created_at", "expires_at")
    return as_json({"tokens": [{name: getattr(token, name) for name in shown} for token in found]})


@router.post("/tokens", status_code=201, response_model=shapes.MintedShape)
async def add_token(body: shapes.TokenRequest, request: Request, service: Here) -> Response:
    """A new token: for the caller, for the user an administrator names, or in exchange for a name and password."""
    caller: User | None = request.scope[USER]
    name = await _sign_in(service, request, body) if caller is None else _for_whom(caller, body)
    minted, now = mint(), clock.now()
    expires_at = None if body.expires_in is None else now + body.expires_in
    await service.call(service.store.add_token, minted.id, name, minted.secret_hash, body.label, expires_at, now)
    shown = {"id": minted.id, "user": name, "label": body.label, "created_at": now, "expires_at": expires_at}
    return as_json({**shown, "token": minted.text}, 201)


def _for_whom(caller: User, body: shapes.TokenRequest) -> str:
    if body.user not in (None, caller.name) and not caller.admin:
        raise NotAllowed("only an administrator makes tokens for others")
    return body.user or caller.name


async def _sign_in(service: Service, request: Request, body: shapes.TokenRequest) -> str:
    if body.user is None or body.password is None:
        raise NotSignedIn("neither a token nor a user and password came with the request; give one of them")
    address = request.client.host if request.client else ""
    service.tries.check(body.user, address)
    try:
        async with service.hashing:
            await service.call(_check, service, body.user, body.password)
    except NotSignedIn:
        service.tries.failed(body.user, address)
        raise
    service.tries.succeeded(body.user, address)
    return body.user


def _check(service: Service, name: str, password: str) -> None:
    try:
        known = service.store.user(name).password_hash
    except NotFound:
        known = None
    passwords.check_password(password, known)


@router.delete("/tokens/{number}", status_code=204)
async def revoke_token(number: str, service: Here, user: Asker) -> Response:
    await service.call(_revoke, service, user, number)
    service.guard.forget()
    return Response(status_code=204)


def _revoke(service: Service, user: User, number: str) -> None:
    token = service.store.token(number)
    if token.user != user.name and not user.admin:
        raise NotFound(f"there is no token {number[:20]!r} of yours; see 'shoal token ls'")
    service.store.revoke_token(number)
