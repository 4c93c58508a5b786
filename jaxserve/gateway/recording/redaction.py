"""Keys and tokens taken out of what is recorded, and of what agents print.

An agent that says its key, or prints its variables, would leave it in files that others read. Token
ids stay as they are: they are what was sampled, and who trains on them has to know of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson

from jaxserve.gateway.recording.records import Choice, CompletionRecord

PLACEHOLDER = "[secret]"
"""What stands in the place of a secret; the same in JSON."""
_SHORTEST = 8
"""Characters of a secret. Shorter ones, as ``EMPTY``, are words that anybody says."""


class Redaction:
    """Some secrets."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        """Args: as they are shown; None is none."""
        self._said = frozenset(one for one in secrets if one and len(one) >= _SHORTEST)
        forms = {form for one in self._said for form in (one.encode(), orjson.dumps(one)[1:-1])}
        # Of two of which one has the other in it the longer goes first.
        self._forms = sorted(forms, key=len, reverse=True)

    def beside(self, secrets: Iterable[str]) -> Redaction:
        """The same and others."""
        return Redaction((*self._said, *secrets))

    def text(self, text: bytes) -> bytes:
        """A text, plain or JSON, without them."""
        for form in self._forms:
            text = text.replace(form, PLACEHOLDER.encode())
        return text

    def begun(self, text: bytes) -> int:
        """How many bytes at the end of a text may be the beginning of one."""
        return max(
            (
                length
                for form in self._forms
                for length in range(1, min(len(form), len(text) + 1))
                if text.endswith(form[:length])
            ),
            default=0,
        )

    def record(self, record: CompletionRecord) -> CompletionRecord:
        """A record without them, but for its token ids."""
        bodies = {name: getattr(record, name) for name in ("received", "sent", "response")}
        return replace(
            record,
            **{name: body and self.text(body) for name, body in bodies.items()},
            sampling=self._json(record.sampling),
            choices=tuple(map(self._choice, record.choices)),
        )

    def _choice(self, choice: Choice) -> Choice:
        texts = choice.texts
        if texts is not None and self._is_in("".join(texts).encode()):
            texts = None  # it is spread over several of them
        return replace(choice, message=self._json(choice.message), texts=texts)

    def _json(self, value: Any) -> Any:
        text = orjson.dumps(value)
        return orjson.loads(self.text(text)) if self._is_in(text) else value

    def _is_in(self, text: bytes) -> bool:
        return any(form in text for form in self._forms)
