"""Run in the trainers' environment: ``MODEL FILE``. A model's own words as graded trajectories.

Two responses of each are sampled at temperature 1 with tokens of others between them, all of
different lengths, so that a trainer that shifts, pads or masks them wrongly sees other ratios.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from jaxserve.rollouts.files import write_trajectories
from jaxserve.rollouts.traces import TokenTrace, Trajectory


def said(model: Any, ids: list[int], length: int) -> list[float]:
    """Adds sampled tokens to those before them. Returns their log-probabilities."""
    found = []
    for _ in range(length):
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        ids.append(int(torch.multinomial(rows.exp(), 1)))
        found.append(float(rows[ids[-1]]))
    return found


def trace_of(model: Any, number: int) -> TokenTrace:
    """A prompt, a response, what others say, a response."""
    others = [int(one) for one in torch.randint(0, 200, (5 + 3 * number,))]
    ids, prompt = list(others), len(others)
    first = said(model, ids, 7 + number)
    ids += others[: 2 + number]
    second = said(model, ids, 11 - number)
    between = [np.nan] * (2 + number)
    mask = [1] * len(first) + [0] * len(between) + [1] * len(second)
    return TokenTrace(
        prompt_ids=np.array(ids[:prompt], np.int32),
        response_ids=np.array(ids[prompt:], np.int32),
        loss_mask=np.array(mask, np.uint8),
        response_logprobs=np.array(first + between + second, np.float32),
        reward=float(number),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    traces = [trace_of(policy, number) for number in range(4)]
    write_trajectories(sys.argv[2], [Trajectory("COMPLETED", (trace,)) for trace in traces])
