"""One optimiser step on recorded traces, in verl's layout of a batch, without a GPU.

What is verl's: the arguments of ``AgentLoopOutput``, as ``verl_outputs`` gives them, and the batch
that verl 0.9 makes of these. Its prompts are padded on the left, its responses on the right. It has
``response_mask``, ``attention_mask``, ``position_ids``, ``rollout_log_probs``, and the reward in
``rm_scores`` at a response's last token. What is not: verl itself is not imported, since its
trainer wants Ray and GPUs. Advantages of a group (GRPO) and the clipped loss are written out here
in torch.

    python examples/training/tiny_model.py tiny
    python examples/training/verl_step.py --model tiny --traces rollouts.jsonl

The file is one that the rollout service or ``write_trajectories`` wrote; its trajectories are one
group. Prints how many tokens are trained on, how far their importance ratios are from 1 before the
step, and how far the step moved them. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.trainers import verl_outputs

CLIP = 0.2
Batch = dict[str, torch.Tensor]


def batch_of(outputs: list[dict[str, Any]]) -> Batch:
    """The tensors of ``DataProto.batch``, padded with zeros.

    Args:
      outputs: arguments of ``AgentLoopOutput``.
    """
    prompt = max(len(one["prompt_ids"]) for one in outputs)
    response = max(len(one["response_ids"]) for one in outputs)
    names = ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores")
    rows: dict[str, list[list[float]]] = {name: [] for name in (*names, "attention_mask")}
    for one in outputs:
        before, after = prompt - len(one["prompt_ids"]), response - len(one["response_ids"])
        length = len(one["response_ids"])
        rows["prompts"].append([0] * before + one["prompt_ids"])
        rows["responses"].append(one["response_ids"] + [0] * after)
        rows["response_mask"].append(one["response_mask"] + [0] * after)
        rows["rollout_log_probs"].append(one["response_logprobs"] + [0.0] * after)
        scores = [0.0] * (length - 1) + [one["reward_score"]]
        rows["rm_scores"].append(scores + [0.0] * after)
        ones = [1] * (prompt - before + length)
        rows["attention_mask"].append([0] * before + ones + [0] * after)
    batch = {name: torch.tensor(values) for name, values in rows.items()}
    batch["input_ids"] = torch.cat([batch["prompts"], batch["responses"]], dim=1)
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return batch


def log_probs(model: Any, batch: Batch) -> torch.Tensor:
    """Of every token of the responses, ``[B, R]``."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
    length = batch["responses"].shape[1]
    logits = model(**inputs).logits[:, -length - 1 : -1].float()
    picked = logits.log_softmax(-1).gather(-1, batch["responses"][..., None])
    return picked[..., 0]


def advantages_of(batch: Batch) -> torch.Tensor:
    """Of a group: the reward less the group's mean, over its deviation, at each trained token."""
    scores = batch["rm_scores"].sum(1)
    spread = scores.std(correction=0) + 1e-6
    return ((scores - scores.mean()) / spread)[:, None] * batch["response_mask"]


def largest_ratio(new: torch.Tensor, batch: Batch) -> float:
    """Largest ``|ratio - 1|`` of trained tokens."""
    off = ((new - batch["rollout_log_probs"]).exp() - 1).abs()
    return float(off[batch["response_mask"] == 1].max())


def main() -> None:
    """Reads, steps, and tells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    given = parser.parse_args()
    trajectories = [one for one in read_trajectories(given.traces) if one.graded]
    batch = batch_of([one for each in trajectories for one in verl_outputs(each)])
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    optimiser = torch.optim.AdamW(model.parameters(), lr=given.learning_rate)
    new, mask = log_probs(model, batch), batch["response_mask"]
    rows, tokens = mask.shape[0], int(mask.sum())
    print(f"{rows} traces, {tokens} tokens, ratios within {largest_ratio(new, batch):.1e}")
    ratios, advantages = (new - batch["rollout_log_probs"]).exp(), advantages_of(batch)
    clipped = ratios.clamp(1 - CLIP, 1 + CLIP)
    gains = torch.minimum(ratios * advantages, clipped * advantages) * mask
    loss = -gains.sum() / mask.sum()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        again = log_probs(model, batch)
        better = float(((again - new) * advantages).sum() / mask.sum())
    print(f"the step moved ratios by up to {largest_ratio(again, batch):.1e}, gain {better:.1e}")


if __name__ == "__main__":
    main()
