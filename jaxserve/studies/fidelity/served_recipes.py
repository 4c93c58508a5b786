"""What the source of measured servers publishes about how each was started.

Most rows of the file come from InferenceX (SemiAnalysisAI/InferenceX, Apache-2.0), whose repository
has the image, the options and the search space of every run by date (``nvidia-master.yaml`` among
its configurations, and ``benchmarks``, at the commit of that day). A row names its date. What the
file leaves out follows from the two, without a look at what was measured:

- the version of an engine whose image is not named (22 October to 2 December 2025);
- drafts: configurations with ``spec-decoding: mtp`` were first run on 14 January 2026 under
  TensorRT-LLM 1.1.0rc2.post2, and they alone under 1.2.0rc6.post3. They draft 3 tokens, or 1 where
  each GPU attends for sequences of its own. SGLang 0.5.9 drafts 2 in FP8 on B200, where on one day
  the same loops were run without drafts as well;
- the KV format: fp8, but bf16 for DeepSeek under SGLang on Hopper, and for gpt-oss-120b on Hopper
  and under vLLM before 0.11.2;
- the most sequences that SGLang runs at once;
- for how many iterations TensorRT-LLM holds prompts of Llama-3.1-70B back to prefill several;
- lengths, drawn from 80 to 100 % of those named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_SOURCE = re.compile(r"db-dump/|source_file=\d{4}-\d\d-\d\d\.csv")
_DATE = re.compile(r"measured=(\d{4}-\d\d-\d\d)")
_CONFIG = re.compile(r"config_id=(\d+)")

_DRAWN_MEAN = 0.9  # of the length that is named: drawn evenly from 80 to 100 % of it
MTP_SINCE = "2026-01-14"
"""Day on which DeepSeek was first served with drafts."""
HOPPER = ("h100-sxm-80gb", "h200-sxm-141gb")

_IMAGES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("llama-3.1-70b", "vllm"): (("2025-10-22", "0.10.2"),),
    ("llama-3.1-70b", "trtllm"): (("2025-10-22", "1.1.0rc2.post2"),),
    ("gpt-oss-120b", "vllm"): (("2025-10-22", "0.10.2"), ("2025-11-04", "0.11.0")),
    ("gpt-oss-120b", "trtllm"): (("2025-10-22", "1.2.0rc0.post1"), ("2025-12-02", "1.2.0rc2")),
    ("deepseek-v3", "trtllm"): (("2025-10-22", "1.1.0rc2.post2"),),
    ("deepseek-v3", "sglang"): (("2025-10-22", "0.5.3rc1"), ("2025-11-10", "0.5.5")),
}
"""Day from which on a version was the image of a model and an engine, where rows do not name it."""


@dataclass(frozen=True)
class Recipe:
    """How a server was started."""

    version: str | None
    """version of its engine, None where nothing says it."""
    drafts: int | None
    """tokens that it drafts; None where it was run with and without on one day."""
    kv_format: str | None
    """number format of its KV cache, None where the source does not say."""
    most_running: float
    """most sequences that it runs at once."""
    held_iterations: int
    """iterations for which it holds prompts back to prefill several together."""
    drawn: bool
    """whether lengths are drawn."""


def mean_tokens(named: ArrayLike, equal: ArrayLike) -> np.ndarray:
    """Mean of lengths; ``equal`` says of which all are as they are named."""
    return np.asarray(named) * np.where(equal, 1.0, _DRAWN_MEAN)


def recipe(
    source: str,
    model: str,
    gpu: str,
    engine: str,
    version: str | None,
    layout: tuple[int, bool],
    loop: tuple[float, float, float],
    weights: str,
) -> Recipe:
    """The recipe of a row.

    Args:
      source: what the row says of its source.
      model: name of its model file.
      gpu: name of its GPU file.
      engine: its engine.
      version: the engine's version as the row has it.
      layout: number of GPUs, and whether each attends for sequences of its own.
      loop: concurrency, prompt and output.
      weights: number format of the weights.
    """
    if not _SOURCE.search(source):
        return Recipe(version, 0, None, float("inf"), 0, drawn=False)
    found = _DATE.search(source)
    date = found.group(1) if found else ""
    version = version or _image(model, gpu, engine, date)
    gpus, ranks_attend = layout
    most_running = float("inf")
    kv_format, drafts = "fp8", 0
    if model == "gpt-oss-120b" and (
        gpu in HOPPER or (engine == "vllm" and version in ("0.10.2", "0.11.0"))
    ):
        kv_format = "bf16"
    if model == "deepseek-v3" and engine == "sglang":
        if gpu in HOPPER:
            kv_format = "bf16"
        else:
            most_running = 256.0 if weights == "fp4" else 128.0 if gpus == 8 else 32.0
        if version == "0.5.9" and weights == "fp8" and gpus == 8 and gpu not in HOPPER:
            concurrency, prompt, output = loop
            alone = concurrency > 64 or (prompt > output and concurrency > 4)
            plain = _CONFIG.search(source) is not None
            drafts = 2 if alone else 0 if plain else None
            if drafts:
                most_running = 512.0
    mtp = version == "1.2.0rc6.post3" or (version == "1.1.0rc2.post2" and date >= MTP_SINCE)
    if model == "deepseek-v3" and engine == "trtllm" and mtp:
        drafts = 1 if ranks_attend else 3
    held_iterations = 0
    if model == "llama-3.1-70b" and engine == "trtllm" and gpus < 8 and loop[1] == loop[2] == 1024:
        held_iterations = 20
    return Recipe(version, drafts, kv_format, most_running, held_iterations, drawn=True)


def _image(model: str, gpu: str, engine: str, date: str) -> str | None:
    if model == "gpt-oss-120b" and engine == "trtllm" and gpu in HOPPER:
        return "gpt-oss-dev"
    images = _IMAGES.get((model, engine), ())
    return next((name for since, name in reversed(images) if date >= since), None)
