"""Records of completions and their file, a line of JSON for each completion of a session.

Token ids and log-probabilities are base64 of little-endian ``int32`` and ``float32`` inside the
line. A separate binary file would be a quarter smaller, but a line is one write and one ``fsync``:
after a crash a record is whole or absent, and no two files have to match.
"""

from __future__ import annotations

import base64
import os
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
"""Characters of base64 that hold whole ids, and the number of these ids."""
_READ_BYTES = 4 * 2**20
"""Size of a read: lines of a long session have a megabyte, and small reads took half the time."""


@dataclass(frozen=True)
class Link:
    """Link from a completion to the one that it continues."""

    parent: tuple[int, int] | None = None
    """record and choice of the parent; None for the first completion of a conversation."""
    how: str = ROOT
    """``exact``: the prompt strictly extends the parent's prompt and response, token by token.
    ``retokenised``: the prompt extends the parent's prompt and has the parent's message unchanged,
    but in other tokens. ``root``: there is no parent."""
    in_line: bool = False
    """whether this is the parent's one successor in line; other successors begin a new line."""


@dataclass(frozen=True, eq=False)
class RecordedChoice:
    """A choice of a recorded completion, with its tokens."""

    index: int
    """number of the choice in the answer."""
    message: Mapping[str, Any]
    """message of the assistant in OpenAI chat format."""
    finish_reason: str | None
    """finish reason of the engine; None where the answer broke off."""
    response_ids: np.ndarray | None = None
    """ids of the sampled tokens, int32 ``[T]``; None where the engine sent none."""
    logprobs: np.ndarray | None = None
    """log-probabilities of the tokens, float32 ``[T]``; NaN where the engine sent none."""
    texts: Sequence[str] | None = None
    """texts of the tokens, ``[T]``, for people to read; empty for a token without one, such as a
    part of a character; None where the engine sent none."""


@dataclass(frozen=True, eq=False)
class CompletionRecord:
    """Record of one request for a completion, completed or not."""

    session: str
    """id of the session."""
    request_id: str
    """value of the response header ``x-gateway-request-id``."""
    dialect: str
    """dialect of the agent's request."""
    arrived_unix_s: float
    """arrival of the request, s since 1970."""
    received: bytes
    """body of the agent's request, JSON. If no engine received the request: the first 16 KiB of the
    body, of any content, or nothing if the body was not read."""
    seq: int = 0
    """number of the record in its session, from 1 without a gap."""
    ended_unix_s: float = 0.0
    """end of the answer, or of the attempt, s since 1970."""
    engine: str = ""
    """name of the engine that answered."""
    engine_kind: str = ""
    """``vllm`` or ``sglang``."""
    sent: bytes | None = None
    """body of the request to the engine, JSON; None if no engine received the request."""
    response: bytes | None = None
    """answer of the engine in OpenAI chat format, JSON, assembled from its events if streamed; ids
    and log-probabilities are in ``choices``."""
    outcome: str = "completed"
    """``completed``, ``rejected``, ``cancelled`` or ``failed``."""
    reason: str = ""
    """reason why the request was not completed."""
    status: int = 200
    """status of the response; 499 where the client left before its start."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """sampling parameters of the request; the engine has defaults for the others."""
    logprobs_meaning: str = "raw"
    """``raw``: log-probabilities of the model itself; ``scaled``: after the temperature;
    ``processed``: after all processing for sampling."""
    weight_version: str | None = None
    """version of the engines' weights when the engine received the request, as set on the control
    port."""
    weight_version_end: str | None = None
    """version of the engines' weights at the end of the answer."""
    prompt_ids: np.ndarray | None = None
    """token ids of the prompt, int32 ``[P]``; None where the engine sent none."""
    choices: tuple[RecordedChoice, ...] = ()
    """choices by index; partial where the answer broke off."""
    link: Link = Link()
    """link to the completion that this one continues."""

    @property
    def usable(self) -> bool:
        """Whether the completion is complete and all of its tokens are known."""
        return (
            self.outcome == "completed"
            and self.prompt_ids is not None
            and bool(self.choices)
            and all(choice.response_ids is not None for choice in self.choices)
        )

    @property
    def sampled(self) -> int:
        """Number of sampled tokens, as far as their ids are known."""
        return sum(len(one.response_ids) for one in self.choices if one.response_ids is not None)

    @property
    def messages(self) -> list[Any]:
        """Messages of the request to the engine."""
        request = orjson.loads(self.sent) if self.sent else {}
        messages = request.get("messages")
        return messages if isinstance(messages, list) else []


def encode(record: CompletionRecord) -> bytes:
    """Encodes a record as a line."""
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


class PromptDecoder:
    """Decodes the prompts of a file; of a prompt that extends its parent's, only the new part."""

    def __init__(self) -> None:
        """No prompt is known at first."""
        self._ends: dict[int, tuple[str, np.ndarray]] = {}

    def ids(self, text: str | None, seq: int, parent: Any) -> np.ndarray | None:
        """Decodes a prompt.

        Args:
          text: base64 of the token ids, or None.
          seq: number of its record.
          parent: record and choice of the parent, or None.

        Returns:
          token ids, int32 ``[P]``.
        """
        if text is None:
            return None
        before = None if not parent else self._ends.pop(parent[0], None)
        found = None if before is None else _continued(text, *before)
        if found is None:
            found = _unpacked(text, _IDS)
            assert found is not None
        if len(text) == 4 * -(-found.nbytes // 3):  # no character that base64 ignores
            self._ends[seq] = text, found
        return found


def _continued(text: str, begun: str, ids: np.ndarray) -> np.ndarray | None:
    """Ids of a text whose beginning is decoded already; None if the texts begin differently."""
    same = len(begun) // _GROUP * _GROUP
    same -= _GROUP * (same == len(begun))  # the last group may be padded
    if same <= 0 or not text.startswith(begun[:same]):
        return None
    kept = same // _GROUP * _GROUP_IDS
    rest = np.frombuffer(base64.b64decode(text[same:]), _IDS)
    found = np.concatenate([ids[:kept], rest])
    found.flags.writeable = False
    return found


def decode(line: bytes, prompts: PromptDecoder | None = None) -> CompletionRecord:
    """Decodes a line.

    Args:
      line: a line of a file of records.
      prompts: decoder that has seen the earlier lines of the file; None decodes the line alone.

    Raises:
      ValueError: the line is not a record.
    """
    try:
        fields = orjson.loads(line)
        if fields.pop("v") != _VERSION:
            raise ValueError("another version of the format")
        for name in ("received", "sent", "response"):
            fields[name] = None if fields[name] is None else fields[name].encode()
        link = fields["link"]
        if prompts is None:
            fields["prompt_ids"] = _unpacked(fields["prompt_ids"], _IDS)
        else:
            fields["prompt_ids"] = prompts.ids(fields["prompt_ids"], fields["seq"], link["parent"])
        fields["choices"] = tuple(
            RecordedChoice(
                **{
                    **choice,
                    "response_ids": _unpacked(choice["response_ids"], _IDS),
                    "logprobs": _unpacked(choice["logprobs"], _LOGPROBS),
                }
            )
            for choice in fields["choices"]
        )
        parent = None if link["parent"] is None else tuple(link["parent"])
        fields["link"] = Link(**{**link, "parent": parent})
        return CompletionRecord(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a record of a completion: {error}") from None


def lines(path: Path) -> Iterator[bytes]:
    """The complete lines of a file; a line cut short by a crash is skipped."""
    try:
        with path.open("rb", buffering=_READ_BYTES) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except FileNotFoundError:
        return


def read_records(path: Path | str) -> list[CompletionRecord]:
    """Reads all records of a file.

    Raises:
      InputError: a line is not a record, or the numbers have a gap.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"records are {str(path)!r}; it must be a file")
    found: list[CompletionRecord] = []
    prompts = PromptDecoder()
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


class RecordFile:
    """Appends to the file of a session's records; a line is whole or absent after a crash."""

    def __init__(self, path: Path) -> None:
        """Creates the file, or truncates a line that a crash cut short.

        Raises:
          OSError: the file cannot be written.
        """
        self._path = path
        self._torn = False
        with path.open("ab+") as file:
            self._size = _end_of_last_line(file.fileno())
            os.ftruncate(file.fileno(), self._size)

    def add(self, line: bytes) -> None:
        """Appends a line, which survives the process on return, and the machine after ``sync``.

        Raises:
          OSError: the line cannot be written; nothing of it remains in the file.
        """
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            if self._torn:
                os.ftruncate(file, self._size)
                self._torn = False
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(file, rest) :]
            except OSError:
                self._torn = True
                os.ftruncate(file, self._size)
                self._torn = False
                raise
            self._size += len(line)
        finally:
            os.close(file)


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65_536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
