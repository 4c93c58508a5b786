"""Builds token traces from the records of a session.

Every sampled token is trainable in exactly one trace, after exactly the tokens after which it was
sampled, or is counted as dropped. A conversation that cannot continue in its trace continues in a
new one, whose prompt is the whole history, without trainable tokens.

``metadata`` of a trace:

- ``session``: name of the gateway's session.
- ``conversation``: record and choice with which the conversation began.
- ``segment``: number of the trace in its conversation, from 0.
- ``opened_by``: ``root``, or why the trace does not continue that of its parent.
- ``completions``: record, choice, start and stop in ``response_ids`` of each response.
- ``weight_versions``, ``logprobs_meaning``, ``sampling``: one entry for each response.
- ``completion_rewards``: reward of each response, where the evaluator gives them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from jaxserve.gateway.recording.records import EXACT, RETOKENISED, CompletionRecord, RecordedChoice
from jaxserve.rollouts.traces import COMPLETED, TokenTrace, Trajectory

Key = tuple[int, int]

SIBLING = "sibling"
MISMATCH = "mismatch"
PARENT_DROPPED = "parent_dropped"
NO_TOKEN_IDS = "no_token_ids"


@dataclass(frozen=True, eq=False)
class _Sample:
    """A response with all its tokens."""

    record: CompletionRecord
    choice: RecordedChoice
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    logprobs: np.ndarray

    @property
    def key(self) -> Key:
        return self.record.seq, self.choice.index

    @property
    def end(self) -> int:
        """Number of tokens up to the end of the response."""
        return len(self.prompt_ids) + len(self.response_ids)


def per_request(records: Sequence[CompletionRecord], status: str = COMPLETED) -> Trajectory:
    """A trace for each response.

    Args:
      records: records of one session, in order.
      status: final state of the session.
    """
    samples, dropped = _samples(records)
    opened = {sample.key: sample.record.link.how for sample in samples}
    traces = tuple(_trace([sample], opened[sample.key], sample.key, 0) for sample in samples)
    return Trajectory(status, traces, dropped, failures=_failures(records))


def prefix_merging(records: Sequence[CompletionRecord], status: str = COMPLETED) -> Trajectory:
    """A trace for each chain of responses, of which each prompt strictly extends the response
    before; tokens between two responses have mask 0.

    Args:
      records: records of one session, in order.
      status: final state of the session.
    """
    samples, dropped = _samples(records)
    by_key = {sample.key: sample for sample in samples}
    chains: dict[Key, list[_Sample]] = {}
    chain_of: dict[Key, Key] = {}
    opened: dict[Key, str] = {}
    begun: dict[Key, tuple[Key, int]] = {}
    segments: Counter[Key] = Counter()
    for sample in samples:
        link = sample.record.link
        parent = None if link.parent is None else by_key.get(link.parent)
        reason = _reason_to_cut(sample, parent, chains, chain_of)
        if reason is None and parent is not None:
            chain_of[sample.key] = chain_of[parent.key]
            chains[chain_of[sample.key]].append(sample)
            continue
        chain_of[sample.key] = sample.key
        chains[sample.key] = [sample]
        opened[sample.key] = reason or link.how
        conversation = sample.key if parent is None else begun[chain_of[parent.key]][0]
        begun[sample.key] = conversation, segments[conversation]
        segments[conversation] += 1
    cuts = Counter(reason for reason in opened.values() if reason != "root")
    traces = tuple(_trace(chain, opened[head], *begun[head]) for head, chain in chains.items())
    return Trajectory(status, traces, dropped, dict(cuts), _failures(records))


def _reason_to_cut(
    sample: _Sample,
    parent: _Sample | None,
    chains: dict[Key, list[_Sample]],
    chain_of: dict[Key, Key],
) -> str | None:
    """The reason why a sample begins a new trace; None where it continues its parent's."""
    link = sample.record.link
    if link.parent is None:
        return "root"
    if parent is None:
        return PARENT_DROPPED
    if link.how == RETOKENISED:
        return RETOKENISED
    if not link.in_line or chains[chain_of[parent.key]][-1] is not parent:
        return SIBLING
    return None if link.how == EXACT and _extends(sample, parent) else MISMATCH


def _extends(sample: _Sample, parent: _Sample) -> bool:
    """Whether a prompt is the parent's prompt and response and more tokens."""
    prompt, middle = sample.prompt_ids, len(parent.prompt_ids)
    return (
        len(prompt) > parent.end
        and np.array_equal(prompt[:middle], parent.prompt_ids)
        and np.array_equal(prompt[middle : parent.end], parent.response_ids)
    )


def _samples(records: Iterable[CompletionRecord]) -> tuple[list[_Sample], dict[str, int]]:
    """Responses with all their tokens, and the number of tokens of other responses, by reason."""
    found, dropped = [], Counter[str]()
    for record in records:
        for choice in record.choices:
            prompt, response = record.prompt_ids, choice.response_ids
            count = 0 if response is None else len(response)
            if record.outcome != "completed":
                dropped[_failure_reason(record)] += count
            elif prompt is None or response is None:
                dropped[NO_TOKEN_IDS] += count
            elif count:
                logprobs = choice.logprobs
                if logprobs is None:
                    logprobs = np.full(count, np.nan, np.float32)
                found.append(_Sample(record, choice, prompt, response, logprobs))
        if record.outcome == "completed" and not record.usable:
            dropped[NO_TOKEN_IDS] += _uncounted(record)
    return found, {reason: count for reason, count in dropped.items() if count}


def _failures(records: Iterable[CompletionRecord]) -> dict[str, int]:
    """Number of requests without a whole answer, by reason; includes refused requests."""
    return dict(
        Counter(_failure_reason(record) for record in records if record.outcome != "completed")
    )


def _failure_reason(failed: CompletionRecord) -> str:
    return failed.reason or failed.outcome


def _uncounted(record: CompletionRecord) -> int:
    """Sampled tokens in the engine's usage, beyond those with token ids."""
    answer = orjson.loads(record.response) if record.response else {}
    usage = answer.get("usage") or {}
    total = usage.get("completion_tokens")
    return max(0, total - record.sampled) if isinstance(total, int) else 0


def _trace(chain: Sequence[_Sample], opened_by: str, conversation: Key, segment: int) -> TokenTrace:
    """One trace of a chain of samples."""
    ids, masks, logprobs = [], [], []
    texts: list[str] = []
    spans, place, last_end = [], 0, len(chain[0].prompt_ids)
    for sample in chain:
        between = sample.prompt_ids[last_end:]
        ids += [between, sample.response_ids]
        masks += [np.zeros(len(between), np.uint8), np.ones(len(sample.response_ids), np.uint8)]
        logprobs += [np.full(len(between), np.nan, np.float32), sample.logprobs]
        texts += [""] * len(between)
        texts += sample.choice.texts or [""] * len(sample.response_ids)
        start = place + len(between)
        place = start + len(sample.response_ids)
        spans.append((*sample.key, start, place))
        last_end = sample.end
    last = chain[-1]
    request: dict[str, Any] = orjson.loads(last.record.sent) if last.record.sent else {}
    return TokenTrace(
        prompt_ids=chain[0].prompt_ids,
        response_ids=np.concatenate(ids),
        loss_mask=np.concatenate(masks),
        response_logprobs=np.concatenate(logprobs),
        response_texts=tuple(texts) if any(texts) else (),
        messages=(*(request.get("messages") or ()), last.choice.message),
        tools=tuple(request.get("tools") or ()),
        finish_reason=last.choice.finish_reason,
        metadata={
            "session": last.record.session,
            "conversation": conversation,
            "segment": segment,
            "opened_by": opened_by,
            "completions": spans,
            "weight_versions": [sample.record.weight_version for sample in chain],
            "logprobs_meaning": [sample.record.logprobs_meaning for sample in chain],
            "sampling": [sample.record.sampling for sample in chain],
        },
    )
