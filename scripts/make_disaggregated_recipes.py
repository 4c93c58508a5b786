"""Writes data/served/disaggregated.json: how servers with prefill and decode apart were started.

    python scripts/make_disaggregated_recipes.py CHECKOUT    # of SemiAnalysisAI/InferenceX

The settings are facts of the search spaces in .github/configs/nvidia-master.yaml (Apache-2.0), from
the day a commit brought them to the day one took them away; no measured time is read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).parents[1] / "data" / "served" / "disaggregated.json"
CONFIG = ".github/configs/nvidia-master.yaml"
FIRST, LAST = "2025-11-01", "2026-04-27"
ENGINES = {"dynamo-trt": "trtllm", "dynamo-sglang": "sglang"}
MODELS = {"dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b"}
GPUS = {
    "h100": "h100-sxm-80gb",
    "h200": "h200-sxm-141gb",
    "b200": "b200-sxm-180gb",
    "gb200": "gb200-nvl72-186gb",
}
TRTLLM = {
    "0.7.0.post2": "1.2.0rc3",
    "0.8.1.post1": "1.2.0rc6.post1",
    "0.8.1.post2": "1.2.0rc6.post2",
    "0.8.1.post3": "1.2.0rc6.post3",
}
"""TensorRT-LLM in the images of Dynamo, from the support matrix of ai-dynamo/dynamo (that of
0.7.0.post1 for post2)."""
NODE_GPUS = 4  # of the GB200, whose first recipes name nodes in place of GPUs
SGLANG_DRAFTS = 2  # speculative-num-steps of the recipes in NVIDIA/srt-slurm, one excepted
COLUMNS = [
    *("since", "until", "model", "gpu", "engine", "weights", "version"),
    *("prompt", "output", "concurrency", "drafts", "prefill", "decode"),
]
"""prefill and decode: workers, tensor_parallel as named, GPUs of a worker, whether each of them
attends for sequences of its own, and most sequences of each rank (null where not named)."""


def entries(config: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Values of all columns but the days, of each configuration and concurrency."""
    for item in config.values():
        engine = ENGINES.get(item.get("framework"))
        model = MODELS.get(item.get("model-prefix"))
        gpu = GPUS.get(str(item.get("runner")).partition("-")[0])
        if not item.get("disagg") or None in (engine, model, gpu):
            continue
        version = re.split(r":v?", item["image"])[-1].partition("-cu")[0].removesuffix("-runtime")
        served = (model, gpu, engine, item["precision"], version)
        for lengths in item["seq-len-configs"]:
            for space in lengths["search-space"]:
                settings = _settings(space)
                drafts = _drafts(space, settings, engine)
                workers = [_workers(space[role], role, settings) for role in ("prefill", "decode")]
                for concurrency in space["conc-list"]:
                    loop = (lengths["isl"], lengths["osl"], concurrency, drafts)
                    yield (*served, *loop, *workers)


def _settings(space: dict[str, Any]) -> dict[str, str]:
    listed = [
        each
        for role in ("prefill", "decode")
        for each in space[role].get("additional-settings") or ()
    ]
    return dict(each.split("=", 1) for each in listed)


def _drafts(space: dict[str, Any], settings: dict[str, str], engine: str | None) -> int | None:
    if space.get("spec-decoding", "none") == "none":
        return 0
    if engine == "sglang":
        return SGLANG_DRAFTS
    named = re.search(r"_mtp(\d+)", settings.get("CONFIG_FILE", ""))
    depth = settings.get("DECODE_MTP_SIZE") or (named and named.group(1))
    return int(depth) if depth else None


def _workers(role: dict[str, Any], name: str, settings: dict[str, str]) -> tuple[Any, ...]:
    count, gpus = role["num-worker"], role["tp"]
    nodes = settings.get(f"{name.upper()}_NODES")
    if gpus == 1 and role["dp-attn"] and nodes:
        gpus = NODE_GPUS * int(nodes) // count
    most = settings.get(f"{name.upper()}_MAX_BATCH_SIZE")
    if name == "decode" and most is None:
        found = re.search(r"_batch(\d+)", settings.get("CONFIG_FILE", ""))
        most = found and found.group(1)
    return count, role["tp"], gpus, bool(role["dp-attn"]), int(most) if most else None


def main() -> None:
    """Reads every version of the file between the two days."""

    def git(*words: str) -> str:
        command = ["git", "-C", sys.argv[1], *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    named = ["--reverse", "--date=short", "--format=%h %cd", f"--since={FIRST}", f"--until={LAST}"]
    known: dict[tuple[Any, ...], list[str | None]] = {}
    for line in git("log", *named, "HEAD", "--", CONFIG).splitlines():
        commit, day = line.split()
        try:
            found = set(entries(yaml.safe_load(git("show", f"{commit}:{CONFIG}"))))
        except yaml.YAMLError:
            continue  # a commit that was mended by the next
        for entry in found:
            known.setdefault(entry, [day, None])[1] = None
        for entry, days in known.items():
            if entry not in found and days[1] is None:
                days[1] = day
    rows = sorted(([*days, *entry] for entry, days in known.items()), key=json.dumps)
    about = {
        "source": f"search spaces in {CONFIG} of SemiAnalysisAI/InferenceX (Apache-2.0), by "
        "scripts/make_disaggregated_recipes.py; drafts of SGLang from the recipes "
        "in NVIDIA/srt-slurm (Apache-2.0)",
        "trtllm": TRTLLM,
        "columns": COLUMNS,
    }
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps(about, indent=1).removesuffix("\n}")
    OUT.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
