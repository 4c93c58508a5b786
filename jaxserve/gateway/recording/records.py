"""What was said in a session: a record of each completion, a line of JSON each.

Token ids and log-probabilities are base64 of little-endian ``int32`` and ``float32`` inside the
line. A binary file beside it would be a quarter smaller, but one line is one write and one
``fsync``: after a kill it is there whole or not at all, and no two files have to be matched up.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from jaxserve.errors import InputError

EXACT = "exact"
RETOKENISED = "retokenised"
ROOT = "root"
_IDS, _LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
_VERSION = 1
_GROUP, _GROUP_IDS = 16, 3
"""Characters of base64 that hold whole ids, and how many."""
_READ_BYTES = 4 * 2**20
"""Read at a time: lines of a long session have a megabyte, and small pieces cost half the time."""


@dataclass(frozen=True)
class Link:
    """Which completion another one continues."""

    parent: tuple[int, int] | None = None
    """record and choice that it continues; None where it begins a conversation."""
    how: str = ROOT
    """``exact``: its prompt strictly extends the parent's prompt and response, token by token.
    ``retokenised``: it extends the parent's prompt and carries the parent's message unchanged, but
    in other tokens. ``root``: neither is so of any."""
    in_line: bool = False
    """whether it is the parent's one successor in line; others begin a new line."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One of the outputs of a completion."""

    index: int
    """its number in the answer."""
    message: Mapping[str, Any]
    """of the assistant, as OpenAI chat has it."""
    finish_reason: str | None
    """as the engine says; None where it never did."""
    response_ids: np.ndarray | None = None
    """tokens that were sampled, int32 ``[T]``; None where the engine told none."""
    logprobs: np.ndarray | None = None
    """theirs, float32 ``[T]``; NaN where the engine told none."""
    texts: Sequence[str] | None = None
    """theirs as the engine wrote them, ``[T]``, for people who look; empty where a token has none,
    as parts of a character, and None where the engine told none at all."""


@dataclass(frozen=True, eq=False)
class CompletionRecord:
    """One completion, or the attempt at one."""

    session: str
    """whose it is."""
    request_id: str
    """the answer's header ``x-gateway-request-id``."""
    dialect: str
    """in which the agent asked."""
    arrived_unix_s: float
    """when the request had come, s since 1970."""
    received: bytes
    """the request's body as it came, JSON. Where no engine got it the first 16 KiB of it, which may
    be anything, or nothing where it was not read."""
    seq: int = 0
    """number in the session, from 1 without a gap."""
    ended_unix_s: float = 0.0
    """when the answer was complete, or given up."""
    engine: str = ""
    """which one answered."""
    engine_kind: str = ""
    """``vllm`` or ``sglang``."""
    sent: bytes | None = None
    """the request's body as the engine got it, JSON; None where none did."""
    response: bytes | None = None
    """the engine's answer as OpenAI chat, JSON, put together where it came in events; ids and
    log-probabilities are beside it."""
    outcome: str = "completed"
    """completed, rejected, cancelled or failed."""
    reason: str = ""
    """why it was not completed."""
    status: int = 200
    """of the answer; 499 where the client left before it began."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """parameters of sampling that the engine was told; it has its own defaults for others."""
    logprobs_meaning: str = "raw"
    """``raw``: of the model itself. ``scaled``: after the temperature. ``processed``: after all
    that sampling does."""
    weight_version: str | None = None
    """of the engines' weights when the engine got it, as the control door was told."""
    weight_version_end: str | None = None
    """the same when its answer was complete."""
    prompt_ids: np.ndarray | None = None
    """the prompt, int32 ``[P]``; None where the engine did not tell it."""
    choices: tuple[Choice, ...] = ()
    """outputs, by their index; parts of them where the answer broke off."""
    link: Link = Link()
    """what it continues."""

    @property
    def usable(self) -> bool:
        """Whether it is complete and all its tokens are known."""
        return (
            self.outcome == "completed"
            and self.prompt_ids is not None
            and bool(self.choices)
            and all(choice.response_ids is not None for choice in self.choices)
        )

    @property
    def sampled(self) -> int:
        """Tokens that were sampled, as far as they are known."""
        return sum(len(one.response_ids) for one in self.choices if one.response_ids is not None)

    @property
    def messages(self) -> list[Any]:
        """Those that the engine got."""
        asked = orjson.loads(self.sent) if self.sent else {}
        messages = asked.get("messages")
        return messages if isinstance(messages, list) else []


def encode(record: CompletionRecord) -> bytes:
    """The line of a record."""
    fields: dict[str, Any] = {"v": _VERSION, **vars(record)}
    for name in ("received", "sent", "response"):
        fields[name] = None if fields[name] is None else fields[name].decode()
    fields["prompt_ids"] = _packed(record.prompt_ids, _IDS)
    fields["choices"] = [
        {
            **vars(choice),
            "response_ids": _packed(choice.response_ids, _IDS),
            "logprobs": _packed(choice.logprobs, _LOGPROBS),
        }
        for choice in record.choices
    ]
    fields["link"] = vars(record.link)
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


class Prompts:
    """Prompts of a file, of which most begin as their parents: only what is new is decoded."""

    def __init__(self) -> None:
        """There is none yet."""
        self._ends: dict[int, tuple[str, np.ndarray]] = {}

    def ids(self, text: str | None, seq: int, parent: Any) -> np.ndarray | None:
        """A prompt from its base64.

        Args:
          seq: its record's number.
          parent: record and choice that it continues, or None.
        """
        if text is None:
            return None
        before = None if not parent else self._ends.pop(parent[0], None)
        found = None if before is None else _continued(text, *before)
        if found is None:
            found = _unpacked(text, _IDS)
            assert found is not None
        if len(text) == 4 * -(-found.nbytes // 3):  # nothing in it that decoding passes over
            self._ends[seq] = text, found
        return found


def _continued(text: str, begun: str, ids: np.ndarray) -> np.ndarray | None:
    """The ids of a text that begins as another one whose ids are known; None where it does not."""
    same = len(begun) // _GROUP * _GROUP
    same -= _GROUP * (same == len(begun))  # the last group may be padded
    if same <= 0 or not text.startswith(begun[:same]):
        return None
    kept = same // _GROUP * _GROUP_IDS
    rest = np.frombuffer(base64.b64decode(text[same:]), _IDS)
    found = np.concatenate([ids[:kept], rest])
    found.flags.writeable = False
    return found


def decode(line: bytes, prompts: Prompts | None = None) -> CompletionRecord:
    """A record from its line.

    Args:
      prompts: those of the lines before it in its file.

    Raises:
      ValueError: it is none.
    """
    try:
        fields = orjson.loads(line)
        if fields.pop("v") != _VERSION:
            raise ValueError("another version of the format")
        for name in ("received", "sent", "response"):
            fields[name] = None if fields[name] is None else fields[name].encode()
        told = fields["link"]
        if prompts is None:
            fields["prompt_ids"] = _unpacked(fields["prompt_ids"], _IDS)
        else:
            fields["prompt_ids"] = prompts.ids(fields["prompt_ids"], fields["seq"], told["parent"])
        fields["choices"] = tuple(
            Choice(
                **{
                    **choice,
                    "response_ids": _unpacked(choice["response_ids"], _IDS),
                    "logprobs": _unpacked(choice["logprobs"], _LOGPROBS),
                }
            )
            for choice in fields["choices"]
        )
        parent = None if told["parent"] is None else tuple(told["parent"])
        fields["link"] = Link(**{**told, "parent": parent})
        return CompletionRecord(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of a completion: {error}") from None


def lines(path: Path) -> Iterator[bytes]:
    """Whole lines of a file; what a kill has left of the last one is none."""
    try:
        with path.open("rb", buffering=_READ_BYTES) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def read_records(path: Path | str) -> list[CompletionRecord]:
    """All records of a file.

    Raises:
      InputError: a line is no record, or the numbers have a gap.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"records are {str(path)!r}; it must be a file")
    found: list[CompletionRecord] = []
    prompts = Prompts()
    for number, line in enumerate(lines(path), 1):
        try:
            record = decode(line, prompts)
        except ValueError as error:
            raise InputError(f"line {number} of {path} is no record: {error}") from None
        if record.seq != number:
            raise InputError(
                f"line {number} of {path} has seq {record.seq}; it must be {number}: a record is "
                "missing or there twice"
            )
        found.append(record)
    return found


def _packed(values: np.ndarray | None, dtype: np.dtype[Any]) -> str | None:
    if values is None:
        return None
    return base64.b64encode(np.ascontiguousarray(values, dtype).data).decode()


def _unpacked(text: str | None, dtype: np.dtype[Any]) -> np.ndarray | None:
    return None if text is None else np.frombuffer(base64.b64decode(text), dtype)
