"""Redaction: keys and tokens are removed from records and from the output of agents.

An agent that prints its key or its environment would leave secrets in files that others read. Token
ids stay unchanged: they are the sampled tokens, and training needs them as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import orjson

from jaxserve.gateway.recording.records import CompletionRecord, RecordedChoice

PLACEHOLDER = "[secret]"
"""Replacement of a secret, in text and in JSON."""
_MIN_LENGTH = 8
"""Shortest secret, characters; shorter ones, such as ``EMPTY``, are common words."""


class Redaction:
    """Removes a set of secrets."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        """Args: secrets in clear text; None is ignored."""
        self._secrets = frozenset(one for one in secrets if one and len(one) >= _MIN_LENGTH)
        forms = {form for one in self._secrets for form in (one.encode(), orjson.dumps(one)[1:-1])}
        # The longest first: one form may contain another.
        self._forms = sorted(forms, key=len, reverse=True)

    def with_secrets(self, secrets: Iterable[str]) -> Redaction:
        """This redaction with further secrets."""
        return Redaction((*self._secrets, *secrets))

    def text(self, text: bytes) -> bytes:
        """A text, plain or JSON, without secrets."""
        for form in self._forms:
            text = text.replace(form, PLACEHOLDER.encode())
        return text

    def partial_secret(self, text: bytes) -> int:
        """Number of bytes at the end of a text that may be the beginning of a secret."""
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
        """A record without secrets, but for its token ids."""
        bodies = {name: getattr(record, name) for name in ("received", "sent", "response")}
        return replace(
            record,
            **{name: body and self.text(body) for name, body in bodies.items()},
            sampling=self._json(record.sampling),
            choices=tuple(map(self._choice, record.choices)),
        )

    def _choice(self, choice: RecordedChoice) -> RecordedChoice:
        texts = choice.texts
        if texts is not None and self._has_secret("".join(texts).encode()):
            texts = None  # a secret is spread over several tokens
        return replace(choice, message=self._json(choice.message), texts=texts)

    def _json(self, value: Any) -> Any:
        text = orjson.dumps(value)
        return orjson.loads(self.text(text)) if self._has_secret(text) else value

    def _has_secret(self, text: bytes) -> bool:
        return any(form in text for form in self._forms)
