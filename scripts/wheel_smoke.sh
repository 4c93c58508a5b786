#!/usr/bin/env bash
# Builds sdist and wheel into dist/, then uses the wheel in an empty environment outside the
# checkout. The lock file's versions apply, so that a new release elsewhere cannot break a build.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
uv=$repo/.venv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$uv" build --quiet --out-dir dist # the wheel is built from the sdist, so both are complete
"$uv" export --quiet --frozen --no-hashes --no-emit-project --output-file "$work/locked.txt"
"$uv" venv --quiet --python "$repo/.venv/bin/python" "$work/venv"
"$uv" pip install --quiet --python "$work/venv" --constraints "$work/locked.txt" dist/*.whl

cd "$work"
env -u PYTHONPATH "$work/venv/bin/python" - "$repo" <<'PYTHON'
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxserve
from jaxserve.types import ServeAction

repo = Path(sys.argv[1])
package = Path(jaxserve.__file__).parent
assert repo not in package.parents, f"imported from the checkout: {package}"


def files(root):
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


missing = files(repo / "data") - files(package / "data")
assert not missing, f"not in the wheel: {sorted(map(str, missing))}"

env = jaxserve.make("bursty_workload")
action = ServeAction(
    batch_cap=jnp.int32(64),
    kv_budget_fraction=jnp.float32(0.9),
    speculation_depth=jnp.int32(0),
    quantization_tier=jnp.int32(0),
    prefill_decode_split=jnp.int32(0),
    priority_routing=jnp.int32(0),
)
reset_key, step_key = jax.random.split(jax.random.key(0))
state, _ = env.reset(reset_key)
_, timestep = env.step(state, action, step_key)
assert bool(jnp.isfinite(timestep.reward)), timestep.reward
print(f"the wheel resets and steps outside the checkout: reward {float(timestep.reward):.3f}")
PYTHON
"$work/venv/bin/jaxserve" --help >"$work/help.txt" || { cat "$work/help.txt"; exit 1; }
