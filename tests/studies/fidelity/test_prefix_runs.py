"""Real runs with shared prefixes, from summaries in their published form."""

import json

import pytest

from jaxserve.errors import InputError
from jaxserve.studies.fidelity import prefix_runs

CONFIG = """data:
  shared_prefix:
    num_groups: 2
    num_prompts_per_group: 2
    system_prompt_len: 100
    question_len: 100
    output_len: 5
"""
SERVED = """model: meta-llama/Llama-2-70b-hf
tensor_parallelism: 4
max_num_batched_tokens: 2048
max_num_seqs: 128
"""


def write_run(root, name, failures=0, config=CONFIG, served=SERVED):
    """A run of one stage whose latencies are 0.2 s and 0.1 s."""
    run = root / prefix_runs.DIRECTORY / name
    (run / "results").mkdir(parents=True)
    (run / "results" / "config.yaml").write_text(config)
    (run / "exp-config.yaml").write_text(served)
    report = {
        "failures": {"count": failures},
        "load_summary": {"count": 12, "requested_rate": 2.0},
        "successes": {
            "prompt_len": {"min": 200.0, "max": 220.0, "mean": 210.0},
            "latency": {
                "time_to_first_token": {"mean": 0.1},
                "request_latency": {"mean": 0.2},
            },
        },
    }
    (run / "results" / "stage_0_lifecycle_metrics.json").write_text(json.dumps(report))
    return run


def test_prompts_that_come_again_are_found(tmp_path):
    """The first round finds its group's beginning, the next ones all but the last block."""
    (stage,) = prefix_runs.load_stages(write_run(tmp_path, "1-70b-chat"))
    cached, prompt = stage.log["cached_tokens"], stage.log["prompt_tokens"]
    assert cached[0] == 0 and sorted(cached[:4]) == [0, 0, 96, 96]
    assert (cached[4:] == (prompt[4:] - 1) // 16 * 16).all()
    assert (stage.plain["cached_tokens"] == 0).all()
    assert stage.name == "chat at 2/s"


def test_rows_need_runs_without_failures(tmp_path):
    """An overloaded server is left out; absent runs make no rows."""
    assert prefix_runs.prefix_run_fidelity(tmp_path) == []
    write_run(tmp_path, "1-70b-one")
    write_run(tmp_path, "2-70b-failed", failures=3)
    assert prefix_runs.prefix_run_fidelity(tmp_path) == []
    write_run(tmp_path, "3-70b-two")
    latency, ttft, bare = prefix_runs.prefix_run_fidelity(tmp_path)
    assert "2 stages" in latency.detail and "without caching" in latency.detail
    # Two equal runs tell each other's front end exactly; without it both are as far off.
    assert ttft.measured == pytest.approx(0.0, abs=1e-6) and ttft.passed
    assert "TTFT mean, no front end" in bare.check and bare.measured > 1.0


def test_a_run_that_does_not_say_what_was_sent_is_refused(tmp_path):
    """By the name of what is missing."""
    with pytest.raises(InputError, match="does not say num_groups"):
        prefix_runs.load_stages(write_run(tmp_path, "1-70b-x", config="data:\n"))


@pytest.mark.parametrize(
    ("named", "model", "gpus"),
    [
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b", 2),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b", 2),
    ],
)
def test_a_run_is_played_on_what_it_names(tmp_path, monkeypatch, named, model, gpus):
    """Model and GPUs are those of its own file, and each model has rows of its own."""
    played = []
    of = prefix_runs.CostModel.of
    monkeypatch.setattr(
        prefix_runs.CostModel, "of", lambda *given: played.append(of(*given)) or of(*given)
    )
    other = SERVED.replace("meta-llama/Llama-2-70b-hf", named).replace(": 4", f": {gpus}")
    unknown = SERVED.replace("meta-llama/Llama-2-70b-hf", "of/another")
    for number, served in enumerate((other, other, SERVED, unknown)):
        write_run(tmp_path, f"{number}-run", served=served)
    latency, ttft, *_ = prefix_runs.prefix_run_fidelity(tmp_path)
    assert f"{model} latency" in latency.check and f"{model} TTFT" in ttft.check
    assert "no file describes of/another, not played" in latency.detail
    found = {(cost.model, cost.tensor_parallel) for cost in played}
    assert found == {(model, gpus), ("llama-2-70b", 4)}


def test_a_model_without_a_file_is_refused(tmp_path):
    """By its name, with those that have one."""
    served = SERVED.replace("meta-llama/Llama-2-70b-hf", "of/another")
    with pytest.raises(InputError, match="model of a run is 'of/another'; it must be"):
        prefix_runs.load_stages(write_run(tmp_path, "1-x", served=served))
