"""Measured servers of many models, engines and layouts, and the rules that select their rows.

The file (ai-dynamo/aiconfigurator, commit 095f58a51) has one row per closed loop of equal requests.
Rules leave rows out. They look at the row and the hardware, never at a prediction of the cost
model:

- ``disaggregated``: prefill and decode ran on GPUs of their own.
- ``model`` and ``GPU``: no data file describes the model, its weights' format, or the GPU.
- ``layout``: more than 8 GPUs without the layout between them, or concurrency and batch disagree.
- ``memory``: the weights do not fit on the GPUs that are named.
- ``impossible``: a request, with all prompts that are prefilled meanwhile, took less time than the
  hardware needs: products of the prompts at the rate of the fastest kernels measured, their
  attention at the peak of FP8, weights and KV at the peak of the memory, and what GPUs add up
  between them at the peak of the link, as if the switch did the sum. Prefix-cache hits that the
  file does not name were on.
- ``queue``: a request waits longer than it decodes, so that fewer ran than the row names.
- ``ambiguous``: the source ran the configuration with drafts and without on one day, and the row
  does not tell the two apart; or another row of the same configuration and version is 25 % away.

``served_recipes`` adds start options that the source publishes and the file omits.

Rows of the first six rules cannot be compared at all. Rows of the last two are possible on the
hardware, so that they are judged separately as well. Every rule leaves out single rows, never a
whole run for one of its rows.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.formats import STORED_BYTES
from jaxserve.sim.machine.memory import weights_bytes
from jaxserve.sim.machine.stack import ServedGpu, Stack, serve
from jaxserve.studies.fidelity.served_recipes import mean_tokens, recipe

FILE = "silicon/silicon_given.csv"
FOLDS = 3
LARGEST_NODE = 8
TWINS_APART = 1.25
DOUBTS = ("queue", "ambiguous")
"""Rules that leave out rows which the hardware could have produced."""

MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
}
GPUS = {
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "gb200": "gb200-nvl72-186gb",
}
FASTEST_KERNELS = {"bf16": 0.82, "fp8": 0.62, "fp4": 0.62, "mxfp4": 0.62}
"""Largest share of the peak rate that matrix products of a served size reach in the GEMM files."""


@dataclass(frozen=True)
class ServedRow:
    """One measured closed loop."""

    model: str
    """name of its model file."""
    gpu: str
    """name of its GPU file."""
    gpus: int
    """GPUs that share the model."""
    stack: Stack
    """engine, version, formats and layout."""
    concurrency: float
    """requests in flight."""
    prompt: float
    """tokens of every prompt."""
    output: float
    """tokens of every output."""
    equal: bool
    """whether all requests have exactly these lengths."""
    drafts: int
    """draft tokens of a sequence and step."""
    most_running: float
    """largest number of running sequences."""
    held_iterations: int
    """iterations for which the server holds prompts back, to prefill several together."""
    named: bool
    """whether the source tells if tokens were drafted."""
    ttft_s: float
    """measured mean time to first token."""
    tpot_s: float
    """measured mean time per output token."""

    @property
    def mean_prompt(self) -> float:
        """Mean tokens of a prompt."""
        return float(mean_tokens(self.prompt, self.equal))

    @property
    def mean_output(self) -> float:
        """Mean tokens of an output."""
        return float(mean_tokens(self.output, self.equal))

    @property
    def fold(self) -> int:
        """Third of the row, by a hash of its configuration: two measurements of one configuration
        are always in the same third."""
        key = f"{self.model} {self.gpu} {self.gpus} {self.stack.formats[0]} {self.stack.engine} "
        key += f"{self.concurrency:.0f} {self.prompt:.0f} {self.output:.0f}"
        return int(hashlib.sha256(key.encode()).hexdigest(), 16) % FOLDS

    @property
    def ranks(self) -> int:
        """GPUs that attend for sequences of their own; 1 where all share every sequence."""
        return self.gpus if self.stack.attention_data_parallel else 1

    @property
    def served(self) -> tuple[str, str, int, Stack]:
        """GPU, model, number of GPUs and stack: the parameters of a cost model."""
        return self.gpu, self.model, self.gpus, self.stack

    @property
    def run(self) -> tuple[str, str, str, str, str | None, int]:
        """Model, GPU, format, engine, version and drafts, which rows measured together share.

        The last is 1 with drafts, 0 without and -1 where the source does not tell.
        """
        stack = self.stack
        kind = -1 if not self.named else min(self.drafts, 1)
        return self.model, self.gpu, stack.formats[0], stack.engine, stack.version, kind

    @property
    def configuration(self) -> tuple[object, ...]:
        """All settings that the file names."""
        stack = self.stack
        return (
            *self.run,
            self.gpus,
            stack.attention_data_parallel,
            self.concurrency,
            self.prompt,
            self.output,
        )


def served_rows(directory: Path) -> tuple[list[ServedRow], dict[ServedRow, str], Counter[str]]:
    """Selects the rows of the file.

    Args:
      directory: directory of measurements, see ``measurements.shared_data``.

    Returns:
      rows that are compared, doubtful rows with their rule, and number of rows left out by rule.
    """
    columns = read_columns(directory / FILE)
    left_out: Counter[str] = Counter()
    rows: dict[ServedRow, str] = {}
    for values in zip(*columns.values(), strict=True):
        row = _row(dict(zip(columns, values, strict=True)))
        if isinstance(row, str):
            left_out[row] += 1
        elif row in rows:
            left_out["repeated"] += 1
        else:
            rows[row] = _unfit(row)
    twins: defaultdict[tuple[object, ...], list[ServedRow]] = defaultdict(list)
    for row, why in rows.items():
        if not why and not row.named:
            rows[row] = "ambiguous"
        elif not why:
            twins[row.configuration].append(row)
    for same in twins.values():
        if max(r.tpot_s for r in same) > TWINS_APART * min(r.tpot_s for r in same):
            rows |= dict.fromkeys(same, "ambiguous")
    left_out.update(why for why in rows.values() if why)
    kept = [row for row, why in rows.items() if not why]
    return kept, {row: why for row, why in rows.items() if why in DOUBTS}, left_out


def _row(item: dict[str, object]) -> ServedRow | str:
    """One row of the file, or the rule that leaves it out without a look at its times."""
    model, gpu = MODELS.get(str(item["model_path"])), GPUS.get(str(item["system"]))
    if item["mode"] != "agg":
        return "disaggregated"
    if model is None or gpu is None:
        return "model" if model is None else "GPU"
    tp, experts = number(item["tp_size"]), number(item["moe_ep_size"])
    ranks, share = number(item["attention_dp_size"]), number(item["moe_tp_size"])
    product = tp * ranks
    # Some rows have the product of two sizes that are one and the same, number of GPUs both.
    doubled = (share == experts > 1 and product == experts * share) or tp == ranks > 1
    gpus = round(product**0.5) if doubled else round(product)
    told = re.search(r"silicon_concurrency=(\d+)", str(item["silicon_data_source"]))
    concurrency = float(told.group(1)) if told else number(item["batch_size"])
    if gpus > LARGEST_NODE or concurrency != number(item["batch_size"]) * ranks:
        return "layout"
    weights = str(item["precision"]) or "bf16"
    if model == "gpt-oss-120b":
        weights = "mxfp4"
    if weights not in STORED_BYTES:
        return "model"
    engine = str(item["backend"])
    ranks_attend = ranks > 1
    loop = (concurrency, number(item["isl"]), number(item["osl"]))
    source = str(item["silicon_data_source"])
    version = str(item["backend_version"]) or None
    how = recipe(source, model, gpu, engine, version, (gpus, ranks_attend), loop, weights)
    # Engines' recipes for quantised dense models quantise the KV cache as well; SGLang's do not.
    dense = model.startswith(("llama", "qwen3-32b"))
    stack = Stack(
        engine=engine,
        version=how.version,
        formats=(weights, weights, weights),
        kv_format=how.kv_format
        or ("fp8" if dense and weights != "bf16" and engine != "sglang" else "bf16"),
        attention_data_parallel=ranks_attend,
    )
    return ServedRow(
        model=model,
        gpu=gpu,
        gpus=gpus,
        stack=stack,
        concurrency=concurrency,
        prompt=loop[1],
        output=loop[2],
        equal=not how.drawn,
        drafts=how.drafts or 0,
        most_running=how.most_running,
        held_iterations=how.held_iterations,
        named=how.drafts is not None,
        ttft_s=1e-3 * number(item["silicon_ttft_ms"]),
        tpot_s=1e-3 * number(item["silicon_tpot_ms"]),
    )


def _unfit(row: ServedRow) -> str:
    """The rule that leaves this row out, or an empty text."""
    gpu, model = shipped(row.gpu, row.model, dataclasses.replace(row.stack, version=None))
    stored = weights_bytes(model, 0, row.gpus)
    if stored > gpu.memory_bytes:
        return "memory"
    if _least_s(row, gpu, model) > row.ttft_s + row.mean_output * row.tpot_s:
        return "impossible"
    return "queue" if row.ttft_s > row.output * row.tpot_s else ""


def _least_s(row: ServedRow, gpu: ServedGpu, model: LargeModel) -> float:
    """Least seconds of the hardware for one request and all prompts prefilled meanwhile."""
    prompt, output, gpus = row.mean_prompt, row.mean_output, row.gpus
    steps = output / (1 + row.drafts)
    peak = (gpu.expert_linear if model.experts else gpu.linear)[0].flops_per_s
    rate = gpus * peak * FASTEST_KERNELS[row.stack.formats[0]]
    prompts_s = row.concurrency * 2 * model.active_parameters * prompt / rate
    pairs = row.concurrency * model.kv_layers * prompt**2 / 2
    attention_s = pairs * 4 * model.attention_width / (gpus * 2 * gpu.linear[0].flops_per_s)
    weights = model.active_parameters * model.expert_stored_bytes[0] / gpus
    kv_bytes = model.kv_bytes_per_token * model.kv_share(gpus)
    kv = row.concurrency * (prompt + output / 2) * kv_bytes
    reads_s = steps * (weights + kv) / gpu.bandwidth_bytes_per_s
    sent_s = 0.0
    if gpus > 1 and not row.stack.attention_data_parallel:
        sent = row.concurrency * prompt * 2 * model.layers * 2 * model.hidden
        sent_s = sent / gpu.link_bytes_per_s
    return prompts_s + attention_s + reads_s + sent_s


@functools.cache
def shipped(gpu: str, model: str, stack: Stack) -> tuple[ServedGpu, LargeModel]:
    """GPU and model with the constants in their files."""
    served_gpu, served_model = serve(gpu, model, stack)
    if not isinstance(served_gpu, ServedGpu) or not isinstance(served_model, LargeModel):
        raise TypeError("a stack always gives the served forms")
    return served_gpu, served_model


def number(value: object) -> float:
    """The number in a cell; an empty cell and 0 stand for 1."""
    text = str(value)
    return float(text) if text and float(text) else 1.0
