"""The whole loop: agents play through the gateway, vLLM samples, TRL trains, vLLM serves it anew.

Any other agent would do: the gateway records what it says to the model. Prints for each step the
mean reward, the weights that sampled, how many tokens are trained on, and how far their importance
ratios are from 1 before the step; at the end how far the last step moved them. Needs trl (tried
with 1.16), jaxserve's extras gateway and server, and vLLM in an environment of its own:

    python examples/training/tiny_model.py tiny
    VLLM_SERVER_DEV_MODE=1 vllm serve tiny --served-model-name tiny --dtype float32 \\
        --max-model-len 4096 --enable-auto-tool-choice --tool-call-parser hermes \\
        --reasoning-parser qwen3
    jaxserve gateway --engine vllm=http://127.0.0.1:8000 --sessions sessions
    python -m server.app --port 7860
    python examples/training/grpo_gateway.py --model tiny --sessions sessions
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from jaxserve.client import ServeClient
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.recording.records import read_records
from jaxserve.rollouts.builders import prefix_merging
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.ratios import Ratios, importance_ratios, token_logprobs
from jaxserve.rollouts.traces import TokenTrace
from jaxserve.rollouts.trainers import trl_rollout

SEEN = ("request_arrival_rate", "queue_depth", "p99_ttft_ms", "mean_itl_ms", "slo_compliance_rate")
PROMPT = "You operate an LLM server: set its knobs in every window until it is done."
KNOBS = {"type": "object", "properties": {"batch_cap": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "step", "parameters": KNOBS}}


def play(given: argparse.Namespace, key: str, seed: int) -> float:
    """An agent plays an episode, a window for each answer of the model. Returns its mean reward."""
    model = openai.OpenAI(base_url=f"{given.gateway}/v1", api_key=key, timeout=600)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    total = 0.0
    with ServeClient(given.environment) as env:
        env.reset(task_id="bursty_workload", seed=seed, config={"horizon": given.windows})
        for _ in range(given.windows):
            answer = model.chat.completions.create(model="tiny", messages=messages, tools=[TOOL])
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                break
            call = said.tool_calls[0]
            seen, reward, _, _ = env.step(json.loads(call.function.arguments))
            total += reward
            shown = json.dumps({name: round(seen[name], 3) for name in SEEN})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
    return total / given.windows


def recorded(given: argparse.Namespace, control: httpx.Client, seed: int) -> TokenTrace:
    """Turns of an agent in a session of its own, with their reward. TRL takes one trace of each."""
    session = control.post("/sessions", json={}).json()
    reward = play(given, session["key"], seed)
    control.post(f"/sessions/{session['id']}/close")
    records = read_records(given.sessions / session["id"] / "records.jsonl")
    traces = exported(prefix_merging(records)).traces
    return replace(max(traces, key=lambda trace: trace.trainable), reward=reward)


def serve(given: argparse.Namespace, control: httpx.Client, trainer: Any, version: str) -> None:
    """Has vLLM serve the trainer's weights, and the gateway record which they are."""
    folder = Path(trainer.args.output_dir).absolute() / f"weights-{version}"
    trainer.model.save_pretrained(folder)
    control.put("/control/inference/pause")
    load = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    httpx.post(f"{given.engine}/collective_rpc", json=load, timeout=600).raise_for_status()
    httpx.post(f"{given.engine}/reset_prefix_cache", timeout=600).raise_for_status()
    control.put("/control/weights", json={"version": version}).raise_for_status()
    control.put("/control/inference/resume")


def ratios_of(traces: list[TokenTrace], model: Any) -> Ratios:
    """Of a model to the one that sampled."""

    def policy(trace: TokenTrace) -> np.ndarray:
        ids = torch.tensor(np.concatenate([trace.prompt_ids, trace.response_ids])[None])
        with torch.no_grad():
            return token_logprobs(model(ids).logits[0].float().numpy(), trace)

    return importance_ratios(traces, policy)


def main() -> None:
    """Trains; all episodes of a step have one seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--sessions", required=True, type=Path, help="the gateway's folder")
    parser.add_argument("--engine", default="http://127.0.0.1:8000")
    parser.add_argument("--gateway", default="http://127.0.0.1:9000")
    parser.add_argument("--control", default="http://127.0.0.1:9001")
    parser.add_argument("--environment", default="http://127.0.0.1:7860")
    parser.add_argument("--bf16", action="store_true", help="as TRL does by default")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--group", type=int, default=8, help="episodes of a step")
    parser.add_argument("--windows", type=int, default=4, help="of an episode")
    given = parser.parse_args()
    shown = CONTROL.headers(given.control)
    control = httpx.Client(base_url=given.control, headers=shown, timeout=600)
    traces: list[TokenTrace] = []

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """One trace for each prompt."""
        version = f"step-{trainer.state.global_step}"
        serve(given, control, trainer, version)
        with ThreadPoolExecutor(given.group) as pool:
            seeds = [trainer.state.global_step] * len(prompts)
            traces[:] = pool.map(lambda seed: recorded(given, control, seed), seeds)
        ratios = ratios_of(traces, trainer.model)
        (sampled,) = {each for trace in traces for each in trace.metadata["weight_versions"]}
        mean = np.mean([trace.reward for trace in traces])
        print(
            f"{version}: reward {mean:.3f}, weights {sampled}, {ratios.tokens} tokens, "
            f"ratios within {ratios.largest:.1e}",
            flush=True,
        )
        return trl_rollout(traces)

    config = GRPOConfig(
        output_dir="grpo_gateway",
        max_steps=given.steps,
        per_device_train_batch_size=given.group,
        num_generations=given.group,
        learning_rate=1e-3,
        bf16=given.bf16,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    ask = [{"role": "user", "content": PROMPT}]
    trainer = GRPOTrainer(
        model=given.model,
        args=config,
        reward_funcs=lambda reward, **_: reward,
        rollout_func=rollout,
        train_dataset=Dataset.from_dict({"prompt": [ask] * given.steps}),
    )
    trainer.train()
    moved = ratios_of(traces, trainer.model).largest
    print(f"the last step moved ratios by up to {moved:.1e}")


if __name__ == "__main__":
    main()
