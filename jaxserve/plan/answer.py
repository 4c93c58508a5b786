"""The answer of a plan in words and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxserve.plan.doubt import WIDTH
from jaxserve.plan.options import EngineOption
from jaxserve.plan.plan import Plan
from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.search import Tried
from jaxserve.plan.start import served_model
from jaxserve.sim.machine.assumptions import assumed_times

FORMAT = 1
"""Version of plan.json."""
_LEVELS = (1, 4, 16, 64)


_WORTH_SCALING = 0.75
"""Share of a plan's GPUs below which the mean demand makes scaling worth a look."""


def headline(plan: Plan) -> str:
    """The answer in one sentence."""
    by, wanted = plan.best.deployment, plan.inputs.objective
    share = f"{plan.best.result.attainment:.2%}"
    return (
        f"{by.name}: {_gpus(by.gpus)}, {by.usd_per_hour:,.2f} USD/h, {share} "
        f"of the requests within TTFT {wanted.ttft_s:g} s and TPOT {wanted.tpot_s:g} s "
        f"(wanted {wanted.attainment:.2%})"
    )


def certainty(plan: Plan) -> list[str]:
    """Sentences on how sure the answer is."""
    doubt, (low, high) = plan.best.deployment.option.doubt, plan.attainment
    fewest, most = plan.gpus
    upper = f"more than {plan.inputs.max_gpus}" if most is None else str(most)
    span = _gpus(fewest) if most == fewest else f"{fewest} to {upper} GPUs"
    suffices = "suffices" if span == "1 GPU" else "suffice"
    said = [
        f"Times of this engine are known to {WIDTH * doubt.error:.0%} (95 %; mean error "
        f"{doubt.error:.1%}: {doubt.source}).",
        f"Attainment is between {low:.2%} and {high:.2%} (95 %), and {span} of this engine "
        f"{suffices}.",
    ]
    if plan.sample is not None:
        said.append(plan.sample)
    option = plan.best.deployment.option
    if not doubt.measured:
        assumed = assumed_times(option.kind, plan.inputs.model, option.stack, (option.tier,))
        said += [f"{sentence[0].upper()}{sentence[1:]}." for sentence in assumed]
    if plan.sure:
        said.append("The doubt does not change the choice.")
    for rival in plan.rivals:
        said.append(
            f"{rival.tried.deployment.name} at {rival.tried.deployment.usd_per_hour:,.2f} USD/h "
            f"misses with at most {rival.tried.result.attainment:.2%}, but reaches up to "
            f"{rival.faster:.2%} if its times are as short as its doubt allows."
        )
    if plan.uncertain_options:
        names = ", then of ".join(option.name for option in plan.uncertain_options)
        said.append(f"A load test of {names} would settle the choice (--load-test).")
    return said


def scaling(plan: Plan) -> list[str]:
    """A sentence on the GPUs that following the traffic would take, where they are much fewer than
    the plan's."""
    own, mean = plan.best.deployment.gpus, float(plan.least_gpus.mean())
    if plan.best.deployment.replicas < 2 or mean > _WORTH_SCALING * own:
        return []
    return [
        f"Following the traffic exactly would take {mean:.2f} of these {own} GPUs on average: "
        "jaxserve autoscale finds the rule that comes nearest, and what it saves."
    ]


def unknown(plan: Plan) -> list[str]:
    """Sentences on what the plan cannot know."""
    said = [
        "Other traffic than the given one: a busier day needs the margin above.",
        "Failures and restarts of GPUs; one replica more covers one failure.",
        "Time in networks, tokenisers and clients, which adds to TTFT.",
        "Prices and availability of GPUs beyond those given.",
    ]
    option = plan.best.deployment.option
    if option.weight_format != "bf16" or option.kv_format != "bf16":
        said.append(f"The quality of answers in {option.weight_format} with {option.kv_format} KV.")
    if option.drafts is not None:
        said.append(
            f"Acceptance of drafts on this traffic: {option.drafts.profile} was measured with "
            "Llama-3.1-8B-Instruct and EAGLE."
        )
    if plan.best.deployment.prefill:
        said.append(
            "Transfers of KV at less than the speed of the GPUs' links, and proxies that deliver "
            "the first token from the replica that decodes: one transfer and one step later than "
            "in the plan, which adds to TTFT and takes from TPOT."
        )
    if plan.inputs.trace.blocks is None:
        said.append(
            "Shared prefixes of prompts, which the traffic does not tell; they save prefill."
        )
    if np.ptp(plan.inputs.trace.output_tokens) == 0:
        said.append("The spread of lengths: all requests have the same.")
    if plan.inputs.unpriced:
        said.append(f"GPUs without a price: {', '.join(plan.inputs.unpriced)}.")
    return said


def measurement(plan: Plan, option: EngineOption) -> list[str]:
    """Commands of a load test that would narrow the doubt of an engine."""
    prompts = sorted(set(plan.inputs.usual_prompts))
    output = int(plan.inputs.mean_lengths[1])
    model = served_model(plan.inputs.model)
    return [
        f"vllm bench serve --model {model} --dataset-name random --random-input-len {prompt} "
        f"--random-output-len {output} --ignore-eos --max-concurrency {level} --num-prompts "
        f"{max(4 * level, 16)} --save-result --append-result --result-filename load_test.jsonl"
        for prompt in prompts
        for level in _LEVELS
        if level <= 2 * plan.best.deployment.batch_cap
    ]


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as a JSON object."""
    objective = plan.inputs.objective
    fewest, most = plan.gpus
    return {
        "format": FORMAT,
        "model": plan.inputs.model,
        "traffic": plan.inputs.traffic,
        "trace": plan.inputs.trace.facts,
        "sample": plan.sample,
        "objective": dataclasses.asdict(objective),
        "max_gpus": plan.inputs.max_gpus,
        "prices_usd_per_hour": plan.inputs.prices,
        "answer": headline(plan),
        "deployment": _deployment(plan.best.deployment)
        | {"max_model_len": plan.inputs.model_length},
        "result": _finite(dataclasses.asdict(plan.best.result)),
        "interval_95": {
            "attainment": list(plan.attainment),
            "gpus": [fewest, most],
            "relative_time_error": plan.best.deployment.option.doubt.error,
            "source": plan.best.deployment.option.doubt.source,
        },
        "check": plan.check,
        "sure": plan.sure,
        "certainty": certainty(plan),
        "measurements": {
            option.name: measurement(plan, option) for option in plan.uncertain_options
        },
        "bears": {"traffic_factor": plan.bears[0], "largest_tried": plan.bears[1]},
        "least_gpus": {
            "window_s": 60,
            "requests_per_s_of_a_replica": plan.requests_per_s,
            "peak": int(plan.least_gpus.max()),
            "mean": float(plan.least_gpus.mean()),
            "by_window": plan.least_gpus.tolist(),
        },
        "front": [_tried(each) for each in plan.front],
        "neighbours": [
            {"difference": each.difference, "meets": each.meets, "binds": each.binds}
            | _tried(each.tried)
            for each in plan.neighbours
        ],
        "rivals": [
            _tried(each.tried) | {"attainment_at_the_fast_end": each.faster} for each in plan.rivals
        ],
        "cheapest_of_kind": [
            {"gpu": gpu, "deployment": name, "usd_per_hour": price}
            for gpu, name, price in plan.cheapest_of_kind
        ],
        "tried": [_tried(each) for each in plan.tried],
        "excluded": [dataclasses.asdict(each) for each in plan.excluded],
        "unknown": unknown(plan),
    }


def _deployment(by: PlannedDeployment) -> dict[str, Any]:
    option = by.option
    searched = {} if by.drafts is None else {"draft": option.draft, "depths": by.drafts.ranges}
    if by.prefill:
        searched["prefill_replicas"] = by.prefill
    return {
        "name": by.name,
        "gpu": option.gpu,
        "tensor_parallel": option.tensor_parallel,
        "expert_parallel": option.attention_data_parallel,
        "weight_format": option.weight_format,
        "kv_format": option.kv_format,
        "replicas": by.replicas,
        "gpus": by.gpus,
        "batch_cap": by.batch_cap,
        "token_budget": by.token_budget,
        "kv_tokens": by.kv_tokens,
        "usd_per_hour": round(by.usd_per_hour, 4),
        **searched,
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {
        "name": tried.deployment.name,
        "usd_per_hour": round(tried.deployment.usd_per_hour, 4),
        "gpus": tried.deployment.gpus,
        "attainment": tried.result.attainment,
        "whole_traffic": tried.whole,
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """NaN as null, which JSON has no number for."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in values.items()
    }
