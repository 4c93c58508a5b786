"""GRPO on a server of jaxserve with TRL: each generation plays an episode, a window per tool call.

Prints for each step the mean reward and the tool calls of its episodes. Needs trl (tried with
1.16) and jaxserve's extra server.

    python examples/training/tiny_model.py tiny
    python -m server.app --port 7860
    python examples/training/grpo_environment.py --model tiny --url http://127.0.0.1:7860
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from jaxserve.client import ServeClient

TASK = "bursty_workload"
SEEN = ("request_arrival_rate", "queue_depth", "p99_ttft_ms", "mean_itl_ms", "slo_compliance_rate")
PROMPT = "You operate an LLM server: set its knobs in every window until it is done. It shows: "
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|end|>", "content": "text"},
    },
}
"""How transformers reads a tool call of the tiny model; TRL knows that of models with a name."""


def operator(url: str, windows: int) -> type:
    """The environment that TRL makes for each generation."""

    class Operator:
        """Methods without an underscore are the model's tools."""

        def __init__(self) -> None:
            self._env = ServeClient(url)

        def reset(self, seed: int, **_: Any) -> str:
            """Begins an episode; what is shown becomes a part of the prompt."""
            self._rewards: list[float] = []
            first = self._env.reset(task_id=TASK, seed=seed, config={"horizon": windows})
            return json.dumps({name: first[name] for name in SEEN})

        def step(self, batch_cap: int) -> str:
            """Holds the knobs for one window.

            Args:
                batch_cap: Sequences per GPU that may run at once, 1 to 512.
            """
            seen, reward, done, _ = self._env.step({"batch_cap": batch_cap})
            self._rewards.append(reward)
            return json.dumps({**{name: seen[name] for name in SEEN}, "done": done})

        def get_reward(self) -> float:
            """Of the whole episode; windows that were not played earn nothing."""
            return sum(self._rewards) / windows

    return Operator


def main() -> None:
    """Trains, with a new seed in each step that all of its episodes share."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--group", type=int, default=8, help="episodes of a step")
    parser.add_argument("--windows", type=int, default=4, help="of an episode")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    if "<|assistant|>" in tokenizer.get_vocab():
        tokenizer.response_template = RESPONSE
    ask = [{"role": "user", "content": PROMPT}]
    config = GRPOConfig(
        output_dir="grpo_environment",
        max_steps=given.steps,
        per_device_train_batch_size=given.group,
        num_generations=given.group,
        max_completion_length=1024,
        learning_rate=1e-3,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
    )
    trainer = GRPOTrainer(
        model=given.model,
        args=config,
        processing_class=tokenizer,
        environment_factory=operator(given.url, given.windows),
        train_dataset=Dataset.from_dict({"prompt": [ask] * 100, "seed": list(range(100))}),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            calls = f"{entry['tools/call_frequency']:.1f} tool calls an episode"
            print(f"step {entry['step']}: reward {entry['reward']:.3f}, {calls}")


if __name__ == "__main__":
    main()
