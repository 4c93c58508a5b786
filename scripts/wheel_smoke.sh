#!/usr/bin/env bash
# Builds sdist and wheel into dist/, then uses the wheel in an empty environment outside the
# checkout, first without and then with an extra. The lock file's versions apply, so that a new
# release elsewhere cannot break a build.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
uv=$repo/.venv/bin/uv
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$uv" build --quiet --out-dir dist # the wheel is built from the sdist, so both are complete
"$uv" export --quiet --frozen --extra server --no-hashes --no-emit-project --output-file "$work/locked.txt"
"$uv" venv --quiet --python "$repo/.venv/bin/python" "$work/venv"
install() {
  "$uv" pip install --quiet --python "$work/venv" --constraints "$work/locked.txt" "$1"
}
install "$(echo dist/*.whl)"
(cd "$work" && "$work/venv/bin/jaxserve" --help >help.txt) || { cat "$work/help.txt"; exit 1; }
install "$(echo dist/*.whl)[server]"

cd "$work"
env -u PYTHONPATH "$work/venv/bin/python" - "$repo" <<'PYTHON'
import sys
from pathlib import Path

import jax

import jaxserve
from jaxserve.client import ServeClient
from server.local import LocalServer

repo = Path(sys.argv[1])
package = Path(jaxserve.__file__).parent
assert repo not in package.parents, f"imported from the checkout: {package}"


def files(root):
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


missing = files(repo / "data") - files(package / "data")
assert not missing, f"not in the wheel: {sorted(map(str, missing))}"

env = jaxserve.make("bursty_workload")
action = jaxserve.make_action(batch_cap=64, kv_budget_fraction=0.9)
state, _ = env.reset(jax.random.key(0))
_, timestep = env.step(state, action)
reward = float(timestep.reward)
with LocalServer(Path.cwd()) as server, ServeClient(server.url) as client:
    client.reset(task_id="bursty_workload", seed=0)
    _, served, _, _ = client.step({"batch_cap": 64, "kv_budget_fraction": 0.9})
print(f"outside the checkout the wheel steps (reward {reward:.3f}) and serves ({served:.3f})")
assert 0.0 < reward <= 1.0 and 0.0 < served <= 1.0
PYTHON
