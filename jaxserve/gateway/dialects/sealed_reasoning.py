"""Reasoning in the opaque fields that clients send back unread.

Anthropic's ``signature``, the ``encrypted_content`` of responses and Google's ``thoughtSignature``
are base64 to their clients, some of which decode and encode the value anew. Reasoning is no secret
here: this client has just received it.
"""

from __future__ import annotations

import base64
import binascii
import zlib

_MARK = b"jaxserve1"


def sealed(text: str) -> str:
    """Encodes a text as an opaque value."""
    plain = text.encode()
    check = zlib.crc32(plain).to_bytes(4, "big")
    return base64.b64encode(_MARK + check + plain).decode("ascii")


def unsealed(value: object) -> str | None:
    """Decodes a text; None if the value is of another provider, or damaged."""
    if not isinstance(value, str):
        return None
    # Both alphabets, with padding or without.
    letters = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        found = base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    check, plain = found[len(_MARK) : len(_MARK) + 4], found[len(_MARK) + 4 :]
    if not found.startswith(_MARK) or zlib.crc32(plain).to_bytes(4, "big") != check:
        return None
    return plain.decode()
