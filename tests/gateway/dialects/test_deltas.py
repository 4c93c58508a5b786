"""The algebra that streams and whole answers share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice, Counts
from jaxserve.gateway.dialects.deltas import Finish, Logprobs, Text, deltas_of, fold
from tests.gateway.dialects.conversations import completions, cut_deltas


@given(completions(most=3))
def test_deltas_of_a_completion_fold_to_it(completion: Completion) -> None:
    """The two are one thing."""
    assert fold(deltas_of(completion)) == completion


@given(st.data(), completions(most=3))
def test_where_texts_are_cut_is_nothing(data: st.DataObject, completion: Completion) -> None:
    """Any number of deltas folds to the same."""
    assert fold(data.draw(cut_deltas(completion))) == completion


@given(st.data(), completions(most=3))
def test_choices_may_be_mixed(data: st.DataObject, completion: Completion) -> None:
    """Deltas of different choices come in any order; each choice's are in its own."""
    queues = [list(deltas_of(Completion((choice,)))) for choice in completion.choices]
    mixed = []
    while any(queues):
        mixed.append(data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
    assert fold(mixed).choices == completion.choices


def test_what_texts_do_not_say() -> None:
    """Stop sequences, log-probabilities, a stream without an end, and the last count."""
    entries = ({"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0})
    deltas = [Text(0, "ab"), Logprobs(0, entries[:1]), Logprobs(0, entries[1:])]
    deltas += [Counts(3, 1), Finish(0, "stop", "END"), Text(1, "c"), Counts(3, 2)]
    completion = fold(deltas)
    assert completion.choices == (
        CompletionChoice(0, "ab", finish="stop", stop="END", logprobs=entries),
        CompletionChoice(1, "c"),
    )
    assert completion.counts == Counts(3, 2)
    assert fold(deltas_of(completion)) == completion
