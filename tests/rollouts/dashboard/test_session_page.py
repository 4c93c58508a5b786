"""The pages show the service's tokens, progress and reasons, and no HTML of agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S
from tests.rollouts.dashboard.dashboard_thread import RunningDashboard
from tests.rollouts.service.agents import python
from tests.rollouts.service.service_thread import RunningService

pytestmark = pytest.mark.slow

TALK = """
import json, os, sys, urllib.request as u
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
key["content-type"] = "application/json"
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
messages = [{"role": "user", "content": os.environ["INSTRUCTION"]}]
for reply in json.loads(sys.argv[1]):
    body = {"model": "stub", "messages": messages, "stub": {"reply": reply}}
    said = json.load(u.urlopen(u.Request(url, json.dumps(body).encode(), key)))
    messages += [said["choices"][0]["message"], {"role": "user", "content": "and?"}]
"""
"""An agent that asks on and on; the model answers as the argument says."""
WAIT_FOR = "import os, sys, time\nwhile not os.path.exists(sys.argv[{}]): time.sleep(0.02)"
WAIT = WAIT_FOR.format(1)
NASTY = (
    '<img src=x onerror="window.hit=1">',
    '"><script>window.hit=1</script>',
    "</pre><svg/onload=window.hit=1>",
    "<a href=\"javascript:window.hit=1\" id='hit'>here</a>",
)

UNFOLDED = """() => {
  const all = [...document.querySelectorAll('details')];
  all.forEach(one => { one.open = true; });
  return all.every(one => one.childElementCount > 1);
}"""
"""Opens all folds, and those in them, until each has its content."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with its gateway and engine."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s") as running,
    ):
        yield running


@pytest.fixture
def page(browser: Any, service: RunningService) -> Iterator[Any]:
    """A page of a dashboard, without a script that fails."""
    problems: list[str] = []
    with RunningDashboard(service) as dashboard:
        made = browser.new_context(base_url=dashboard.url).new_page()
        made.set_default_timeout(1000 * PATIENCE_S)
        made.on("pageerror", lambda error: problems.append(str(error)))
        made.goto(dashboard.opened_at)
        made.goto("about:blank")
        yield made
        made.context.close()
    assert problems == []


def talk(*replies: str) -> dict[str, Any]:
    """An agent to which the model says these."""
    return python(TALK, json.dumps(replies))


def test_a_trace_token_by_token(page: Any, service: RunningService) -> None:
    """Every sampled token with its id, its text and exactly the log-probability of the trace; a
    long trace in parts, none of them lost."""
    long = "x" * 3500
    service.result(service.submit(task_id="t", agent=talk("one", "t w\no\t\u00ad<b>\u00e9", long)))
    (trace,) = service.http.get("/sessions/t.0/trajectory").json()["traces"]
    page.goto("/#/session/t.0")
    shown = page.locator(".tokens > span.trained")
    shown.first.wait_for()
    trained = [place for place, mask in enumerate(trace["loss_mask"]) if mask]
    assert shown.count() < len(trained)
    page.get_by_role("button", name="more").click()
    page.wait_for_function(
        "count => document.querySelectorAll('.tokens > span.trained').length === count",
        arg=len(trained),
    )
    told = shown.evaluate_all(
        "all => all.map(one => [one.dataset.mask, one.lastChild.textContent, one.title,"
        " one.style.getPropertyValue('--sure'), one.querySelector('b').textContent])"
    )
    names = ("response_ids", "response_logprobs", "response_texts")
    signs = {" ": "␣", "\n": "↵", "\t": "⇥", "\u00ad": "\\u{ad}"}
    for place, one in zip(trained, told, strict=True):
        mask, text, title, sure, said = one
        id, logprob, sampled = (trace[name][place] for name in names)
        assert said == signs.get(sampled, sampled) and mask == "1"
        begun, value = title.split(", log-probability ")
        assert begun == f"token {place}: id {id}, mask 1" and float(value) == logprob
        assert text.split("·")[0] == str(id)
        assert float(text.split("·")[1]) == pytest.approx(logprob, rel=5e-3, abs=6e-4)
        assert sure.endswith("%")
    shows = "".join(said for *_, said in told)
    assert shows == f"one</s>t␣w↵o⇥\\u{{ad}}<b>\u00e9</s>{long}</s>"
    said = page.locator("section", has_text="Trace 1").locator("p").first.inner_text()
    count = len(trace["response_ids"])
    assert f"then {count}, of which {len(trained)} are trained on" in said


def test_what_the_model_was_shown(page: Any, service: RunningService) -> None:
    """The prompt and what came between answers are text, as the requests' messages had it, each
    with its token ids; without records there are the ids, and a sentence says so."""
    service.result(service.submit(task_id="t", agent=talk("one", "two"), instruction="do <b>this"))
    (trace,) = service.http.get("/sessions/t.0/trajectory").json()["traces"]
    between = [
        id for id, mask in zip(trace["response_ids"], trace["loss_mask"], strict=True) if not mask
    ]
    page.goto("/#/session/t.0")
    block = page.locator(".tokens > .shown")
    block.wait_for()
    assert block.locator("small").all_inner_texts() == ["user"]
    assert block.locator("> p").all_inner_texts() == ["and?"]
    block.locator("summary", has_text=f"{len(between)} tokens with mask 0").click()
    ids = block.locator(".tokens span")
    ids.first.wait_for()
    assert ids.all_inner_texts() == [str(id) for id in between]
    page.get_by_text(f"Prompt, {len(trace['prompt_ids'])} tokens").click()
    prompt = page.locator("details:has(> summary:text('Prompt')) > .shown")
    prompt.locator("> p").wait_for()
    assert prompt.locator("> p").all_inner_texts() == ["do <b>this"]
    prompt.locator("summary").click()
    prompt.locator(".prompt").first.wait_for()
    shown = prompt.locator(".prompt").all_inner_texts()
    assert shown == [str(id) for id in trace["prompt_ids"]]
    page.route("**/completions*", lambda route: route.fulfill(status=404, body="{}"))
    page.reload()
    page.locator(".tokens > .shown p.soft").wait_for()
    said = page.locator(".tokens > .shown p").first.inner_text()
    assert said == "no record says what these tokens are"


def test_a_timeline_and_an_evaluation_to_read(page: Any, service: RunningService) -> None:
    """Every state has its whole name and its duration, and the evaluation is a table, its lists
    too."""
    own = "tests.rollouts.evaluators.user_evaluators:Worth"
    evaluator = {"name": own, "worth": 0.25, "completions": [[1, 0, 1.0], [2, 0, -0.5]]}
    service.result(service.submit(task_id="t", agent=talk("one", "two"), evaluator=evaluator))
    events = service.http.get("/sessions/t.0").json()["events"]
    page.goto("/#/session/t.0")
    rows = page.locator(".timeline .span")
    rows.first.wait_for()
    assert rows.locator(".state").all_inner_texts() == [event["state"] for event in events]
    for label in rows.locator(".state").all():
        assert label.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    said = rows.locator(".number").all_inner_texts()
    assert said[-1].startswith("after ") and all(one.endswith(" s") for one in said)
    facts = page.locator("section", has_text="Evaluation").locator("table.facts").first
    told = {
        row.locator("th").inner_text(): row.locator("td").inner_text()
        for row in facts.locator("tr").all()
    }
    assert told == {"reward": "0.25", "told": "do it", "records": "2"}


def test_the_list_of_tasks_is_live(page: Any, service: RunningService, tmp_path: Path) -> None:
    """From its submission to its end a task moves on by itself, in the page that was loaded
    first."""
    page.goto("/#/tasks")
    page.wait_for_selector("text=No task was submitted yet.")
    page.evaluate("window.same = true")
    gate = tmp_path / "go"
    waiting = {"command": [sys.executable, "-c", WAIT, str(gate)], "model": "the-model"}
    service.submit(task_id="slow", agent=waiting, num_samples=2)
    row = page.locator("tr", has_text="slow")
    row.get_by_text("0 of 2", exact=True).wait_for()
    assert row.get_by_text("the-model").count() == 1
    service.wait_for("slow", "RUNNING")
    assert row.locator(".bar i.COMPLETED").get_attribute("title") == "COMPLETED: 0"
    gate.touch()
    row.get_by_text("2 of 2", exact=True).wait_for()
    done = row.locator(".bar i.COMPLETED")
    assert done.get_attribute("title") == "COMPLETED: 2"
    assert done.get_attribute("style") == "width: 100%;"
    assert page.evaluate("window.same") is True


def test_completions_appear_while_the_agent_talks(
    page: Any, service: RunningService, tmp_path: Path
) -> None:
    """On the session's page, by itself, each asked for once; the last drawing is that of the
    end."""
    talks = talk("one", "two")["command"][-2:]
    gates = [tmp_path / "on", tmp_path / "go"]
    code = "\n".join([talks[0], WAIT_FOR.format(2), talks[0], WAIT_FOR.format(3)])
    agent = {"command": [sys.executable, "-c", code, talks[1], *map(str, gates)]}
    asked: list[Any] = []
    page.on("response", lambda one: asked.append(one) if "/completions" in one.url else None)
    service.submit(task_id="talks", agent=agent)
    page.goto("/#/session/talks.0")
    page.evaluate("window.same = true")
    page.get_by_text("Completions (2)", exact=True).wait_for()
    gates[0].touch()
    page.get_by_text("Completions (4)", exact=True).wait_for()
    lines = [line for one in asked if one.ok for line in one.text().splitlines()]
    assert sorted(json.loads(line)["seq"] for line in lines) == [1, 2, 3, 4]
    assert page.locator(".state").first.inner_text() == "RUNNING"
    assert service.http.get("/sessions/talks.0").json()["state"] == "RUNNING"
    gates[1].touch()
    page.get_by_text("Trace 1", exact=True).wait_for()
    assert page.locator(".state").first.inner_text() == "COMPLETED"
    assert page.evaluate("window.same") is True


def test_a_failed_task_says_why(page: Any, service: RunningService) -> None:
    """The reason is in the task's table and on the session's page."""
    service.submit(task_id="bad", agent={"command": [sys.executable, "-c", "exit(3)"]})
    (session,) = service.result("bad")["sessions"]
    assert session["state"] == "ERROR" and "exit code 3" in session["reason"]
    page.goto("/#/task/bad")
    row = page.locator("tr", has_text="bad.0")
    row.get_by_text(session["reason"], exact=True).wait_for()
    assert row.locator(".state.ERROR").inner_text() == "ERROR"
    page.get_by_role("link", name="bad.0").click()
    about = page.locator("section", has_text="Session bad.0").locator("p").first
    about.wait_for()
    assert session["reason"] in about.inner_text() and about.is_visible()
    box = about.bounding_box()
    assert box is not None and box["height"] > 10 and box["y"] < page.viewport_size["height"]


def test_nothing_that_is_said_is_html(page: Any, service: RunningService) -> None:
    """Instructions, models' names, metadata, answers and requests are text on every page, with all
    parts unfolded."""
    nasty = "\n".join(NASTY)
    task = {
        "task_id": "xss",
        "instruction": nasty,
        "agent": {**talk(*NASTY), "model": NASTY[2]},
        "metadata": {nasty: nasty},
    }
    service.submit(**task)
    assert service.result("xss")["completed"] == 1
    for path in ("tasks", "task/xss", "session/xss.0", "compare/xss/xss", "nodes"):
        page.goto(f"/#/{path}")
        page.locator("#page > *").first.wait_for(state="attached")
        if path != "nodes":
            page.get_by_text("xss").first.wait_for(state="attached")  # options are hidden
        if path == "session/xss.0":
            page.get_by_text(f"Completions ({len(NASTY)})", exact=True).wait_for()
        page.wait_for_function(UNFOLDED)
        made = "#page :is(img, script, svg, iframe, object, #hit, [onerror], [onload])"
        assert page.locator(made).count() == 0
        links = page.locator("a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
        assert not [link for link in links if "javascript" in link]
        assert page.evaluate("window.hit") is None
        if path == "session/xss.0":
            text = page.locator("#page").inner_text()
            assert text.count("window.hit=1") > len(NASTY)
            assert "</pre><svg/onload=window.hit=1>" in text
