"""Traces hold what was sampled, under what it was sampled, once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from jaxserve.gateway.recording.records import CompletionRecord, Link
from jaxserve.rollouts.builders import per_request, prefix_merging
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.traces import Trajectory
from tests.examples_drawn import MANY
from tests.gateway.token_engine import prompt_of, sampled
from tests.rollouts.conversation_trees import Message, Tree, trees, user


def check(records: list[CompletionRecord], trajectory: Trajectory) -> None:
    """Every sampled token is trainable once, under exactly its context, or counted as dropped."""
    whole = {(one.seq, c.index): (one, c) for one in records for c in one.choices}
    trained: Counter[tuple[int, int]] = Counter()
    for trace in trajectory.traces:
        marked = np.zeros(len(trace.response_ids), np.uint8)
        everything = np.concatenate([trace.prompt_ids, trace.response_ids])
        for seq, index, start, stop in trace.metadata["completions"]:
            record, choice = whole[seq, index]
            assert choice.response_ids is not None and record.prompt_ids is not None
            before = everything[: len(trace.prompt_ids) + start]
            np.testing.assert_array_equal(before, record.prompt_ids)
            np.testing.assert_array_equal(trace.response_ids[start:stop], choice.response_ids)
            np.testing.assert_array_equal(trace.response_logprobs[start:stop], choice.logprobs)
            texts = trace.response_texts[start:stop]
            assert list(texts) == list(choice.texts) if choice.texts else not any(texts)
            marked[start:stop] += 1
            trained[seq, index] += 1
        np.testing.assert_array_equal(trace.loss_mask, marked)
        between = np.flatnonzero(marked == 0) if trace.response_texts else ()
        assert not any(trace.response_texts[place] for place in between)
        assert np.isnan(trace.response_logprobs[marked == 0]).all()
    assert set(trained.values()) <= {1}
    missing = [key for key in whole if key not in trained]
    lost = sum(len(sampled({**whole[key][1].message})) for key in missing)
    assert lost == sum(trajectory.dropped.values())
    for key in missing:
        record = whole[key][0]
        assert (record.reason or "no_token_ids") in trajectory.dropped
    assert sum(map(len, (sampled({**c.message}) for _, c in whole.values()))) == (
        trajectory.trainable + sum(trajectory.dropped.values())
    )


@given(trees())
@MANY
def test_every_token_is_trainable_once_in_its_context(records: list[CompletionRecord]) -> None:
    """Whatever agents do: siblings, retries, discarded answers, sub-agents, compaction, other
    tokens, later system messages, several choices, failures."""
    for build in (per_request, prefix_merging):
        check(records, build(records))
    merged, single = prefix_merging(records), per_request(records)
    assert len(merged.traces) <= len(single.traces)
    assert merged.trainable == single.trainable == exported(merged).trainable
    roots = sum(trace.metadata["opened_by"] == "root" for trace in merged.traces)
    assert roots + sum(merged.cuts.values()) == len(merged.traces)


@given(trees())
@MANY
def test_no_completion_has_two_successors_in_line(records: list[CompletionRecord]) -> None:
    """And a parent comes before, is usable, and is what the link says."""
    parents = [record.link.parent for record in records if record.link.in_line]
    assert len(parents) == len(set(parents))
    for record in records:
        if record.link.parent is None or record.prompt_ids is None:
            assert record.link == Link()
            continue
        parent = records[record.link.parent[0] - 1]
        (choice,) = [c for c in parent.choices if c.index == record.link.parent[1]]
        assert parent.seq < record.seq and parent.usable and parent.prompt_ids is not None
        assert choice.response_ids is not None
        end = parent.prompt_ids.tolist()
        if record.link.how == "exact":
            end += choice.response_ids.tolist()
        assert len(record.prompt_ids) > len(end)
        assert record.prompt_ids[: len(end)].tolist() == end


def conversation(tree: Tree, *turns: str) -> list[Message]:
    """A line of answers, each to a new question."""
    messages: list[Message] = [user("q")]
    for turn in turns:
        record = tree.ask(messages, [turn])
        messages = [*messages, {**record.choices[0].message}, user("and?")]
    return messages


def test_a_line_is_one_trace() -> None:
    """Tokens between two answers have mask 0."""
    tree = Tree()
    conversation(tree, "one", "two", "three")
    (trace,) = prefix_merging(tree.records).traces
    assert trace.trainable == sum(len(turn) + 1 for turn in ("one", "two", "three"))
    assert trace.prompt_ids.tolist() == prompt_of([user("q")])
    between = len(prompt_of([user("and?")]))
    assert len(trace.response_ids) == trace.trainable + 2 * between
    assert [message["role"] for message in trace.messages].count("assistant") == 3
    assert trace.metadata["opened_by"] == "root" and trace.finish_reason == "stop"
    assert trace.metadata["completions"][0] == (1, 0, 0, 4)


def test_two_ways_on_from_one_answer() -> None:
    """One branch continues the trace; the other's prompt is the shared history."""
    tree = Tree()
    messages = conversation(tree, "one")
    tree.ask(messages, ["left"])
    tree.ask(messages, ["right"])
    trajectory = prefix_merging(tree.records)
    check(tree.records, trajectory)
    assert trajectory.cuts == {"sibling": 1}
    line, other = trajectory.traces
    assert line.metadata["segment"] == 0 and other.metadata["segment"] == 1
    assert line.metadata["conversation"] == other.metadata["conversation"] == (1, 0)
    assert other.prompt_ids.tolist() == prompt_of(messages)


def test_other_tokens_cut_a_line() -> None:
    """If the template encodes an answer in other tokens, no token is trained after wrong tokens;
    the cut is counted, and the conversation is known."""
    tree = Tree()
    conversation(tree, "one", "~two", "three")
    trajectory = prefix_merging(tree.records)
    check(tree.records, trajectory)
    assert [record.link.how for record in tree.records] == ["root", "exact", "retokenised"]
    assert trajectory.cuts == {"retokenised": 1}
    assert [trace.metadata["segment"] for trace in trajectory.traces] == [0, 1]


def test_a_wrong_link_is_not_believed() -> None:
    """A record whose tokens do not extend its parent begins a trace of its own."""
    tree = Tree()
    conversation(tree, "one", "two")
    first, second = tree.records
    other = replace(second, prompt_ids=np.array([1, 2, 3], np.int32))
    trajectory = prefix_merging([first, other])
    check([first, other], trajectory)
    assert trajectory.cuts == {"mismatch": 1}


@pytest.mark.parametrize("build", [per_request, prefix_merging])
def test_what_cannot_be_trained_on_is_counted(build) -> None:
    """Tokens of a broken answer, and of an engine without ids, are counted by reason."""
    tree = Tree()
    tree.ask([user("q")], ["cut"], outcome="cancelled")
    tree.ask([user("q")], ["dark"], ids=False)
    tree.ask([user("q")], ["good"])
    trajectory = build(tree.records)
    assert trajectory.dropped == {"client_left": 4, "no_token_ids": 5}
    assert trajectory.trainable == 5 and len(trajectory.traces) == 1


@pytest.mark.parametrize("build", [per_request, prefix_merging])
@pytest.mark.parametrize("status", ["COMPLETED", "ERROR"])
def test_a_session_in_which_nothing_was_said(build, status: str) -> None:
    """The trajectory has no traces, and the session's status."""
    trajectory = build([], status)
    assert (trajectory.status, trajectory.traces, dict(trajectory.dropped)) == (status, (), {})


def test_a_failed_attempt_takes_no_place_in_line() -> None:
    """The retry goes on where the failure would have."""
    tree = Tree()
    messages = conversation(tree, "one")
    tree.ask(messages, ["half"], outcome="failed")
    tree.ask(messages, ["whole"])
    trajectory = prefix_merging(tree.records)
    check(tree.records, trajectory)
    assert len(trajectory.traces) == 1 and not trajectory.cuts
