"""``pip install jaxserve`` without an extra: every command works or names the extra it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT_EXTRAS = '''
"""Runs commands, with the packages that only extras install hidden."""
import importlib.abc, importlib.metadata, json, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def needed(name, found):
    for line in importlib.metadata.requires(name) or ():
        wanted = Requirement(line)
        package = canonicalize_name(wanted.name)
        here = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if here and package not in found:
            found.add(package)
            needed(package, found)
    return found

kept = needed("jaxserve", {"jaxserve"})
hidden = {
    module
    for module, packages in importlib.metadata.packages_distributions().items()
    if not any(canonicalize_name(package) in kept for package in packages)
}

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
assert {"aiohttp", "fastapi", "matplotlib", "gymnasium"} <= hidden and "jax" not in hidden

from jaxserve import cli

for arguments in json.loads(sys.argv[1]):
    print("$", *arguments, file=sys.stderr, flush=True)
    try:
        code = cli.main(arguments)
    except SystemExit as refused:
        code = refused.code
    print("=", code, file=sys.stderr, flush=True)
'''

_RECORD = {
    "arrival_unix_s": 1.0,
    "prompt_tokens": 10,
    "output_tokens": 5,
    "outcome": "completed",
}

_TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.5,100,10
2023-11-16 18:00:01.5,200,20
"""

_WORKS = """
--help
formats
table show llama-3.1-70b__h100-sxm-80gb
evaluate --task bursty_workload --episodes 1 --agent default
simulate trace.csv --table llama-3.1-70b__h100-sxm-80gb
plan --model llama-3.1-8b --hardware h100-sxm-80gb --max-gpus 1 --rate 0.2 --prompt 100 --output 20 --ttft 1 --tpot 0.1 --out plan
grafana --out dashboard.json
"""  # noqa: E501

_NEEDS = """
gateway --engine vllm=http://127.0.0.1:9
mock-engine --model llama-3.1-8b --hardware h100-sxm-80gb
calibrate --url http://127.0.0.1:9 --hardware h100-sxm-80gb --model llama-3.1-8b --out x.parquet
record records.jsonl --out x.csv
live-task --task bursty_workload --out x.json
operate --task bursty_workload --log log
send --task bursty_workload --url http://127.0.0.1:9
switch off
live-study --directory study
rollout serve
evaluate --task bursty_workload --plot x.png
"""


@pytest.mark.slow
def test_every_command_works_or_names_its_extra(tmp_path: Path) -> None:
    """A command that imports a package beyond the base installation names the extra with it."""
    (tmp_path / "records.jsonl").write_text(json.dumps(_RECORD) + "\n")
    (tmp_path / "trace.csv").write_text(_TRACE)
    works, needs = (lines.strip().splitlines() for lines in (_WORKS, _NEEDS))
    commands = [line.split() for line in [*works, *needs]]
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        check=False,
    )
    print(found.stderr)
    said = found.stderr.split("$ ")[1:]
    assert len(said) == len(works) + len(needs) and found.returncode == 0
    for line in said[: len(works)]:
        assert line.endswith("= 0\n")
    for line in said[len(works) :]:
        assert "install" in line and line.endswith("= 2\n")
