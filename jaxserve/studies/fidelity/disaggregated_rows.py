"""Measured servers whose prompts and decoding have GPUs of their own.

Rows of the file of ``served_rows`` name their layouts, some also the number of workers. The search
spaces that the source publishes by day (``data/served/disaggregated.json``) tell workers, drafts
and limits. Rules leave out rows before any prediction:

- ``model`` and ``GPU``: no data file describes them, or the weights' format.
- ``recipe``: no published search space of that day has the row's loop and layouts.
- ``ambiguous``: several do, with other workers or drafts.
- ``layout``: a worker has more GPUs than one kind of link joins.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from jaxserve.datafiles import load_json
from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.formats import STORED_BYTES
from jaxserve.sim.machine.stack import ServedGpu, Stack
from jaxserve.studies.fidelity.served_recipes import mean_tokens, recipe
from jaxserve.studies.fidelity.served_rows import FILE, FOLDS, GPUS, MODELS, number, shipped

_DAY = re.compile(r"measured=(\d{4}-\d\d-\d\d)")
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
# A configuration is measured before the commit that brings it is merged.
_BEFORE_MERGE = timedelta(days=7)


@dataclass(frozen=True)
class RoleWorkers:
    """Engines of one role."""

    count: int
    """number of engines."""
    gpus: int
    """GPUs of each."""
    ranks_attend: bool
    """whether each of these attends for sequences of its own."""
    expert_parallel: bool
    """whether each of these has some experts whole."""
    most: float
    """largest number of running sequences of an engine."""

    @property
    def ranks(self) -> int:
        """GPUs of an engine with sequences of their own; 1 where all share every sequence."""
        return self.gpus if self.ranks_attend else 1


@dataclass(frozen=True)
class DisaggregatedRow:
    """One measured closed loop."""

    model: str
    """name of its model file."""
    gpu: str
    """name of its GPU file."""
    stack: Stack
    """engine, version and formats."""
    prefill: RoleWorkers
    """engines that prefill."""
    decode: RoleWorkers
    """engines that decode."""
    concurrency: float
    """requests in flight."""
    prompt: float
    """longest prompt, tokens; prompts and outputs are drawn from 80 to 100 % of the longest."""
    output: float
    """longest output, tokens."""
    drafts: int
    """draft tokens of a sequence and step."""
    ttft_s: float
    """measured mean time to first token."""
    tpot_s: float
    """measured mean time per output token."""
    release: str = field(default="", compare=False, repr=False)
    """version of the engine or of its image as the row names it; empty where it names none."""

    @property
    def mean_prompt(self) -> float:
        """Mean tokens of a prompt."""
        return float(mean_tokens(self.prompt, equal=False))

    @property
    def mean_output(self) -> float:
        """Mean tokens of an output."""
        return float(mean_tokens(self.output, equal=False))

    def kind(self, workers: RoleWorkers) -> tuple[str | bool, ...]:
        """Engines of a role that have numbers of their own: those of one release, format, model and
        way to attend."""
        engine, weights = self.stack.engine, self.stack.formats[0]
        return engine, self.release, weights, self.model, workers.ranks_attend

    @property
    def fold(self) -> int:
        """Third of the row, by a hash of its configuration."""
        configuration = dataclasses.replace(self, ttft_s=0.0, tpot_s=0.0)
        return int(hashlib.sha256(repr(configuration).encode()).hexdigest(), 16) % FOLDS

    def served(self, workers: RoleWorkers) -> tuple[ServedGpu, LargeModel]:
        """GPU and model as these engines serve them, with the shipped constants."""
        apart = dataclasses.replace(
            self.stack,
            attention_data_parallel=workers.ranks_attend,
            expert_parallel=workers.expert_parallel,
        )
        return shipped(self.gpu, self.model, apart)


def disaggregated_rows(directory: Path) -> tuple[list[DisaggregatedRow], Counter[str]]:
    """Rows that are compared, and the number of rows left out by rule.

    Args:
      directory: directory of measurements, see ``measurements.shared_data``.
    """
    columns = read_columns(directory / FILE)
    left_out: Counter[str] = Counter()
    rows: dict[DisaggregatedRow, None] = {}
    for values in zip(*columns.values(), strict=True):
        item = dict(zip(columns, values, strict=True))
        if item["mode"] != "disagg":
            continue
        row = _row(item)
        if isinstance(row, DisaggregatedRow) and row in rows:
            row = "repeated"
        if isinstance(row, str):
            left_out[row] += 1
        else:
            rows[row] = None
    return list(rows), left_out


def _row(item: Mapping[str, object]) -> DisaggregatedRow | str:
    """One row of the file, or the rule that leaves it out without a look at its times."""
    model, gpu = MODELS.get(str(item["model_path"])), GPUS.get(str(item["system"]))
    weights = "mxfp4" if model == "gpt-oss-120b" else str(item["precision"])
    if model is None or weights not in STORED_BYTES:
        return "model"
    if gpu is None:
        return "GPU"
    named = {tuple(map(_frozen, each.values())): each for each in _published(item, model, gpu)}
    if len(named) != 1:
        return "ambiguous" if named else "recipe"
    (settings,) = named.values()
    prefill, decode = (
        _workers(settings[role], number(item[f"{role}_moe_ep_size"]) > 1)
        for role in ("prefill", "decode")
    )
    engine, source = str(item["backend"]), str(item["silicon_data_source"])
    loop = (_concurrency(source), number(item["isl"]), number(item["osl"]))
    version = str(item["backend_version"]) or None
    layout = (decode.gpus, decode.ranks_attend)
    how = recipe(source, model, gpu, engine, version, layout, loop, weights)
    images = load_json("served/disaggregated.json")["trtllm"]
    stack = Stack(
        engine=engine,
        version=_known(engine, images.get(version, version)),
        formats=(weights, weights, weights),
        kv_format=how.kv_format or "fp8",
    )
    row = DisaggregatedRow(
        model=model,
        gpu=gpu,
        stack=stack,
        prefill=prefill,
        decode=decode,
        concurrency=loop[0],
        prompt=loop[1],
        output=loop[2],
        drafts=settings["drafts"],
        ttft_s=1e-3 * number(item["silicon_ttft_ms"]),
        tpot_s=1e-3 * number(item["silicon_tpot_ms"]),
        release=str(item["backend_version"]),
    )
    link_gpus = row.served(decode)[0].link_gpus
    return row if max(prefill.gpus, decode.gpus) <= link_gpus else "layout"


def _known(engine: str, version: str | None) -> str | None:
    """The version, or the last one of its patches that was measured; None without either."""
    measured = load_json(f"engines/{engine}.json")["versions"]
    if version is None or version in measured:
        return version
    patched = version.partition(".post")[0]
    return next((each for each in reversed(measured) if each.startswith(patched)), None)


def _published(item: Mapping[str, object], model: str, gpu: str) -> Iterator[dict[str, Any]]:
    """RoleWorkers and drafts of the search spaces that a row may be of."""
    source = str(item["silicon_data_source"])
    found, whole = _DAY.search(source), item["decode_num_workers"] not in ("", None)
    if found is None:
        return
    day = date.fromisoformat(found.group(1))
    loop = (_concurrency(source), number(item["isl"]), number(item["osl"]))
    for each in _spaces():
        same = (each["model"], each["gpu"], each["engine"], each["weights"]) == (
            model, gpu, item["backend"], item["precision"]
        )  # fmt: skip
        if not same or loop != (each["concurrency"], each["prompt"], each["output"]):
            continue
        if day < date.fromisoformat(each["since"]) - _BEFORE_MERGE:
            continue
        if each["until"] is not None and day > date.fromisoformat(each["until"]):
            continue
        # Rows with a number of workers are of configurations without drafts.
        if each["drafts"] is None or (whole and each["drafts"]):
            continue
        if all(_alike(item, role, each[role], whole) for role in ("prefill", "decode")):
            yield {name: each[name] for name in ("drafts", "prefill", "decode")}


def _alike(item: Mapping[str, object], role: str, workers: list[Any], whole: bool) -> bool:
    count, named, gpus, ranks_attend, _ = workers
    size, ranks = (number(item[f"{role}_{each}_size"]) for each in ("tp", "attention_dp"))
    if not whole:
        return size * ranks in (named, gpus)
    own = (number(item[f"{role}_num_workers"]), size * ranks, ranks > 1)
    return own == (count, gpus, ranks_attend and gpus > 1)


def _workers(listed: list[Any], expert_parallel: bool) -> RoleWorkers:
    count, _, gpus, ranks_attend, most = listed
    limit = float("inf") if most is None else most * (gpus if ranks_attend else 1)
    return RoleWorkers(count, gpus, ranks_attend, expert_parallel, float(limit))


def _frozen(value: Any) -> Any:
    """The value with tuples in place of lists."""
    return tuple(value) if isinstance(value, list) else value


def _concurrency(source: str) -> float:
    found = _CONCURRENCY.search(source)
    return float(found.group(1)) if found else 0.0


@functools.cache
def _spaces() -> list[dict[str, Any]]:
    data = load_json("served/disaggregated.json")
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
