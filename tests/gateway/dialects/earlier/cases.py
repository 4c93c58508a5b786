"""What the earlier project's tests of dialects feed, in words of our own, and what becomes of it.

The page ``docs/rollout_cases.md`` says of each case whether ours holds it; a test checks that every
case which it calls held stands here, under the name that it has there.
"""

from __future__ import annotations

from tests.gateway.dialects.earlier import chat, google, messages, responses

_DIALECTS = (messages, google, chat, responses)

REQUESTS = [case for dialect in _DIALECTS for case in dialect.REQUESTS]
"""Case, path, body without its model, and fields of the engine's request; None for one that is not
there."""

ANSWERS = [case for dialect in _DIALECTS for case in dialect.ANSWERS]
"""Case, path, the engine's message, why it ended, its usage, and what the client reads of it."""

STREAMS = [case for dialect in _DIALECTS for case in dialect.STREAMS]
"""Case, path, the engine's deltas, why it ended, and events that the client reads among others, in
order."""

CASES = {row[0] for table in (REQUESTS, ANSWERS, STREAMS) for row in table}
