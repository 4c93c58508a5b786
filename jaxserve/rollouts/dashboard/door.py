"""The dashboard's door: pages are for who shows its token, once in the address or as a header."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from jaxserve.gateway.http.auth import has_token
from jaxserve.gateway.http.json_http import plain_json
from jaxserve.gateway.http.token_files import TokenFile
from jaxserve.rollouts.dashboard.settings import TOKEN_VARIABLE

DASHBOARD = TokenFile("dashboard", TOKEN_VARIABLE)
"""Where all sessions are to be seen."""
_REFUSED = (
    "the dashboard asks for its token: open the address that `jaxserve rollout dashboard` "
    "printed when it began"
)


class Entry:
    """Who gets in.

    The token in an address becomes a cookie, and the address is asked for again without it.
    Browsers show cookies to all ports of a machine, so this one is no token: it is made of the
    token, and opens this door alone.
    """

    def __init__(self, token: str, port: int) -> None:
        """Args: what is asked for, and the port of the pages."""
        self._token = token
        self._cookie = f"jaxserve-dashboard-{port}"
        self._made = hmac.new(token.encode(), b"cookie of a dashboard", hashlib.sha256).hexdigest()

    def address(self, url: str) -> str:
        """The address that opens the pages at ``url``."""
        return f"{url}/?{urlencode({'token': self._token})}"

    def answer(self, request: Request) -> Response | None:
        """What is answered in place of a page; None lets the request in."""
        if _same(request.query_params.get("token", ""), self._token):
            return self._admission(request)
        cookie = request.cookies.get(self._cookie, "")
        if has_token(request.scope["headers"], self._token) or _same(cookie, self._made):
            return None
        if request.url.path.startswith("/api"):
            return plain_json({"error": {"message": _REFUSED}}, 401)
        return PlainTextResponse(f"{_REFUSED}\n", 401)

    def _admission(self, request: Request) -> Response:
        """The cookie, and the way to the same page."""
        others = [one for one in request.query_params.multi_items() if one[0] != "token"]
        # One slash only, and no backslash: with two the next name would be a host's.
        page = quote("/" + request.scope["path"].lstrip("/"))
        answer = RedirectResponse(f"{page}?{urlencode(others)}" if others else page, 303)
        answer.set_cookie(self._cookie, self._made, httponly=True, samesite="strict")
        answer.headers["cache-control"] = "no-store"
        answer.headers["referrer-policy"] = "no-referrer"
        return answer


def _same(given: str, wanted: str) -> bool:
    return secrets.compare_digest(given.encode(), wanted.encode())
