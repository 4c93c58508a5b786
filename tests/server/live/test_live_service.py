"""Live episodes on engines that count what they are sent, and on such as misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from server.live import live_episode, live_service
from server.live.live_log import LiveLog
from server.live.live_service import LiveService
from server.request_errors import (
    EngineFailure,
    EpisodeConflict,
    SpendingLimit,
    StorageFailure,
    UnknownSession,
)
from server.server_settings import Settings
from server.sessions.session import DefaultSession
from tests.server.compiler import CompiledAtOnce
from tests.server.live.paid_engine import PaidEngine

KNOBS = (32.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
TASK = "static_workload"
MINE = DefaultSession("10.0.0.1")


def settings_of(folder: Path, url: str, **variables: Any) -> Settings:
    chosen = {"JAXSERVE_MODE": "live", "JAXSERVE_LIVE_URL": url} | {
        f"JAXSERVE_LIVE_{name.upper()}": str(value) for name, value in variables.items()
    }
    chosen["JAXSERVE_DATABASE"] = str(folder / "sessions.sqlite3")
    return Settings.from_environment(chosen)


def play(settings: Settings, what: Callable[[LiveService], Awaitable[Any]]) -> Any:
    """What something done with a service gives; the service then ends."""

    async def run() -> Any:
        service = LiveService(settings)
        await service.start(CompiledAtOnce())
        try:
            return await what(service)
        finally:
            await service.stop()

    return asyncio.run(run())


@pytest.fixture
def engine() -> Iterator[PaidEngine]:
    with PaidEngine() as paid:
        yield paid


def test_an_episode_is_played_and_measured(engine: PaidEngine, tmp_path: Path) -> None:
    """Requests of the task within the limits; totals agree with what the engine saw."""

    async def episode(service: LiveService) -> None:
        view = await service.reset(session=MINE, task=TASK, seed=3, config={"horizon": 2})
        assert (view.steps, view.window.done, dict(view.live or {})) == (0, False, {})
        first = await service.step(MINE, KNOBS)
        about = first.live
        assert about is not None
        assert about["requests_sent"] <= 5 and about["requests_sent"] <= about["requests_of_task"]
        assert first.window.observation["request_arrival_rate"] == about["requests_sent"]
        assert about["knobs"]["batch_cap"]["how"] == "approximated"
        assert about["knobs"]["kv_budget_fraction"]["how"] == "unsupported"
        last = await service.step(view.session_id, KNOBS)
        assert last.window.done and last.completed == first.completed + last.window.completed
        assert last.completed > 0
        with pytest.raises(EpisodeConflict, match="over after 2 windows"):
            await service.step(MINE, KNOBS)
        shown, grade = await service.grade_session(MINE)
        assert shown == last and (grade.mode, grade.score, grade.windows) == ("live", None, 2)
        assert grade.requests_completed == last.completed
        for computed_again in (service.compared, service.replayed):
            with pytest.raises(EpisodeConflict, match="plays on a real engine"):
                await computed_again(MINE)
        history = await service.history(MINE)
        windows = await service.windows(history)
        assert windows[1:] == [first.window, last.window]
        assert service.live is not None and service.live["tokens_spent"] >= engine.bill

    limits = {"max_requests_per_step": 5, "max_prompt_tokens": 40, "max_completion_tokens": 6}
    play(settings_of(tmp_path, engine.url, **limits), episode)
    _, *sent = engine.requests
    assert sent and all(len(one["prompt"]) <= 40 and one["max_tokens"] <= 6 for one in sent)


def test_a_live_log_that_is_gone_is_said(engine: PaidEngine, tmp_path: Path) -> None:
    """As the session log's; nothing is sent that could not be booked, until it is back."""
    log = tmp_path / "sessions.sqlite3.live"

    async def episode(service: LiveService) -> None:
        begun = await service.reset(session=MINE, task=TASK, seed=3)
        assert await service.fault() is None
        log.rename(tmp_path / "away")
        sent = len(engine.requests)
        assert await service.fault() == "the live log was removed while the server ran"
        with pytest.raises(StorageFailure, match="the live log was removed"):
            await service.step(MINE, KNOBS)
        with pytest.raises(StorageFailure, match="the live log was removed"):
            await service.reset(session=begun.session_id, task=TASK, seed=3)
        assert len(engine.requests) == sent
        (tmp_path / "away").rename(log)
        assert await service.fault() is None
        # The episode that could not be begun anew goes on.
        assert (await service.step(MINE, KNOBS)).steps == 1

    play(settings_of(tmp_path, engine.url), episode)


@pytest.mark.parametrize("chosen", ["on", "off", "auto"])
def test_priorities_are_told(engine: PaidEngine, tmp_path: Path, chosen: str) -> None:
    """In the field that vLLM reads, where it is known to take it; this engine has no plug-in."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task="adversarial_multitenant", seed=3)
        await service.step(MINE, KNOBS)

    play(settings_of(tmp_path, engine.url, priority=chosen), episode)
    sent = [one.get("priority") for one in engine.requests[1:]]
    assert len(sent) > 1
    assert all((told is None) == (chosen != "on") for told in sent)
    if chosen == "on":
        assert set(sent) <= {0, 1, 2}


@pytest.mark.parametrize("provider", ["engine", "openai"])
def test_the_limit_cannot_be_passed(engine: PaidEngine, tmp_path: Path, provider: str) -> None:
    """By steps, steps at once, resets or restarts, whatever an engine's tokenizer makes of it."""
    limit = 3000

    async def until_refused(service: LiveService) -> None:
        own: Any = MINE
        for _ in range(20):
            try:
                own = (await service.reset(session=own, task=TASK)).session_id
                steps = [service.step(MINE, KNOBS) for _ in range(4)]
                found = await asyncio.gather(*steps, return_exceptions=True)
            except SpendingLimit as error:
                found = [error]
            allowed = (SpendingLimit, EpisodeConflict)
            assert all(not isinstance(f, Exception) or isinstance(f, allowed) for f in found)
            if any(isinstance(one, SpendingLimit) for one in found):
                return
        raise AssertionError("nothing was refused")

    chosen = {"provider": provider, "model": "paid", "key": "sk-of-the-test"}
    settings = settings_of(
        tmp_path,
        engine.url,
        token_limit=limit,
        max_prompt_tokens=60,
        max_requests_per_step=4,
        **chosen,
    )
    play(settings, until_refused)
    # Requests that are not sent any more at a reset give their tokens back.
    assert 0 < engine.bill <= limit
    for _ in range(3):
        play(settings, until_refused)
    assert engine.bill <= limit


@pytest.mark.parametrize("mode", ["garbage", "uncounted", "endless", "cut", "telltale"])
def test_a_bad_engine_is_a_problem_and_no_reward(
    engine: PaidEngine, tmp_path: Path, mode: str
) -> None:
    """One sentence, without the key; the window can be played again once the engine is well."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        await service.step(MINE, KNOBS)
        engine.mode = mode
        with pytest.raises(EngineFailure, match="window 1 does not count") as caught:
            await service.step(MINE, KNOBS)
        assert "sk-of-the-test" not in str(caught.value) and len(str(caught.value)) < 600
        assert (await service.view(MINE)).steps == 1
        engine.mode = "well"
        assert (await service.step(MINE, KNOBS, 1)).steps == 2

    play(settings_of(tmp_path, engine.url, key="sk-of-the-test"), episode)


def test_an_engine_without_room_is_measured(engine: PaidEngine, tmp_path: Path) -> None:
    """What a full engine turns away fails its objectives, as in the simulator."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        engine.mode = "full"
        window = (await service.step(MINE, KNOBS)).window
        assert window.completed == 0 and window.failed > 0
        assert window.observation["slo_compliance_rate"] == 0.0

    play(settings_of(tmp_path, engine.url), episode)


def test_an_engine_that_dies(engine: PaidEngine, tmp_path: Path) -> None:
    """In the middle of an episode and before one; the session stays where it was."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        await service.step(MINE, KNOBS)
        engine.stop()
        with pytest.raises(EngineFailure, match="cannot be reached"):
            await service.step(MINE, KNOBS)
        assert (await service.view(MINE)).steps == 1

    async def reset(service: LiveService) -> None:
        with pytest.raises(EngineFailure, match="no episode was begun"):
            await service.reset(session=MINE, task=TASK)

    play(settings_of(tmp_path, engine.url), episode)
    play(settings_of(tmp_path, engine.url), reset)


def test_tokens_beyond_those_booked_are_counted(engine: PaidEngine, tmp_path: Path) -> None:
    """An engine that counts more than was foreseen uses up the limit the sooner."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        engine.mode = "greedy"
        view = await service.step(MINE, KNOBS)
        assert service.live is not None and view.live is not None
        assert service.live["tokens_spent"] > 2 * view.live["tokens_booked"]
        engine.mode, before = "absurd", service.live["tokens_spent"]
        with pytest.raises(EngineFailure, match="which is not believed; window 1 does not count"):
            await service.step(MINE, KNOBS)
        assert service.live["tokens_spent"] - before <= 8 * (512 + 64)

    play(settings_of(tmp_path, engine.url), episode)


@pytest.mark.parametrize("provider", ["engine", "openai"])
@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_refused_request_costs_nothing(
    engine: PaidEngine, tmp_path: Path, status: int, provider: str
) -> None:
    """The booking of a request for which nothing was generated is given back."""

    async def episode(service: LiveService) -> None:
        engine.mode = str(status)
        for _ in range(3):
            with pytest.raises(EngineFailure, match="no episode was begun"):
                await service.reset(session=MINE, task=TASK, seed=3)
        assert service.live is not None and service.live["tokens_spent"] == 0
        engine.mode = "well"
        await service.reset(session=MINE, task=TASK, seed=3)
        before = service.live["tokens_spent"]
        engine.mode = str(status)
        if status == 429:  # a full engine is measured
            await service.step(MINE, KNOBS)
        else:
            with pytest.raises(EngineFailure, match="window 0 does not count"):
                await service.step(MINE, KNOBS)
        assert service.live["tokens_spent"] == before

    chosen = {"provider": provider, "model": "paid", "key": "sk-of-the-test"}
    play(settings_of(tmp_path, engine.url, **chosen), episode)


def test_a_model_that_reasons_is_asked_as_it_takes_it(engine: PaidEngine, tmp_path: Path) -> None:
    """With ``max_completion_tokens``, without a temperature, and silent while it thinks."""
    engine.mode = "reasoning"

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        assert (await service.step(MINE, KNOBS)).completed > 0

    chosen = {"provider": "openai", "model": "paid", "key": "sk-of-the-test"}
    play(settings_of(tmp_path, engine.url, **chosen), episode)
    assert all("temperature" not in asked for asked in engine.requests[-3:])


def test_a_window_that_cannot_be_logged_changes_nothing(
    engine: PaidEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traffic comes again, and the episode has all of its windows."""

    async def episode(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3, config={"horizon": 2})
        await service.step(MINE, KNOBS)
        sent = []
        with monkeypatch.context() as full:

            def fail(*arguments: Any) -> None:
                raise StorageFailure("the disk is full")

            full.setattr(LiveLog, "add", fail)
            for _ in range(2):
                before = len(engine.requests)
                with pytest.raises(StorageFailure, match="full"):
                    await service.step(MINE, KNOBS)
                sent.append([one["max_tokens"] for one in engine.requests[before:]])
        assert (await service.view(MINE)).steps == 1
        before = len(engine.requests)
        last = await service.step(MINE, KNOBS)
        sent.append([one["max_tokens"] for one in engine.requests[before:]])
        assert (last.steps, last.window.done) == (2, True)
        assert last.window.observation["step_index"] == 2
        assert sent[0] and sorted(sent[0]) == sorted(sent[1]) == sorted(sent[2])

    play(settings_of(tmp_path, engine.url), episode)


def test_a_dead_engine_is_a_fault(
    engine: PaidEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any episode, and until the engine is back."""
    monkeypatch.setattr(live_episode, "_PROBE_S", 0.0)

    async def ask(service: LiveService) -> str | None:
        return await service.fault()

    settings = settings_of(tmp_path, engine.url)
    assert play(settings, ask) is None
    engine.stop()
    assert "cannot be reached" in play(settings, ask)


def test_one_session_at_a_time(
    engine: PaidEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have to wait, whoever they say they are; the id and the connection of an episode begin
    it again, and nothing is stepped together."""

    async def sessions(service: LiveService) -> None:
        mine = await service.reset(session=MINE, task=TASK, seed=3)
        with pytest.raises(UnknownSession):
            await service.step("unknown", KNOBS)
        with pytest.raises(EpisodeConflict, match="one session at a time"):
            await service.step_many([(mine.session_id, KNOBS, None)])
        again = await service.reset(session=mine.session_id, task=TASK, seed=4)
        assert again.session_id == mine.session_id
        for stranger in (None, MINE, DefaultSession("10.0.0.2")):
            with pytest.raises(EpisodeConflict, match="a session plays on the engine") as refused:
                await service.reset(session=stranger, task=TASK, seed=5)
            assert mine.session_id not in str(refused.value)
        with pytest.raises(UnknownSession, match="no episode has been started"):
            await service.step(DefaultSession("10.0.0.2"), KNOBS)
        assert (await service.step(MINE, KNOBS)).session_id == mine.session_id
        monkeypatch.setattr(live_service, "_IDLE_S", 0.0)
        other = await service.reset(task=TASK, seed=5)
        assert other.session_id != mine.session_id
        with pytest.raises(EpisodeConflict, match="ended by a restart of the server or by another"):
            await service.step(mine.session_id, KNOBS)

    play(settings_of(tmp_path, engine.url), sessions)


def test_others_may_only_watch(engine: PaidEngine, tmp_path: Path) -> None:
    """The id that ``/runtime`` shows reads the session's log, and neither plays nor ends it."""

    async def sessions(service: LiveService) -> None:
        mine = await service.reset(task=TASK, seed=3)
        await service.step(mine.session_id, KNOBS)
        assert service.live is not None and mine.session_id not in str(service.live)
        watch_id = service.live["watch_id"]
        seen = await service.history(watch_id, watching=True)
        assert len(await service.windows(seen)) == 2
        assert mine.session_id not in str(seen)
        for play in (
            service.step(watch_id, KNOBS),
            service.reset(session=watch_id, task=TASK),
            service.history(watch_id),
            service.drive(watch_id, "default", 1),
        ):
            with pytest.raises((UnknownSession, EpisodeConflict)):
                await play
        assert (await service.step(mine.session_id, KNOBS)).steps == 2

    play(settings_of(tmp_path, engine.url), sessions)


def test_a_client_that_leaves_does_not_end_a_window(engine: PaidEngine, tmp_path: Path) -> None:
    """It is played to its end and counts."""

    async def leave(service: LiveService) -> None:
        await service.reset(session=MINE, task=TASK, seed=3)
        step = asyncio.create_task(service.step(MINE, KNOBS))
        await asyncio.sleep(0.3)
        step.cancel()
        while (await service.view(MINE)).steps == 0:
            await asyncio.sleep(0.05)

    play(settings_of(tmp_path, engine.url), leave)


def test_a_restart_keeps_what_was_measured(engine: PaidEngine, tmp_path: Path) -> None:
    """The episode cannot go on, and its log, grade and spending are still there."""

    async def begin(service: LiveService) -> Any:
        await service.reset(session=MINE, task=TASK, seed=3)
        view = await service.step(MINE, KNOBS)
        return view, service.live

    async def go_on(service: LiveService) -> Any:
        view = await service.view(MINE)
        with pytest.raises(EpisodeConflict, match="restart"):
            await service.step(MINE, KNOBS)
        assert (await service.grade_session(MINE))[1].windows == 1
        return view, service.live

    settings = settings_of(tmp_path, engine.url)
    before, spent = play(settings, begin)
    after, still = play(settings, go_on)
    assert after == before
    assert still["tokens_spent"] == spent["tokens_spent"] > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"JAXSERVE_DATABASE": ":memory:"}, "in memory"),
        ({"WEB_CONCURRENCY": "2"}, "one plays live"),
    ],
)
def test_settings_that_cannot_be_live(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    """Without a file nothing could be kept of what was spent."""
    variables = {
        "JAXSERVE_MODE": "live",
        "JAXSERVE_LIVE_URL": "http://127.0.0.1:1",
        "JAXSERVE_DATABASE": str(tmp_path / "sessions.sqlite3"),
    }
    with pytest.raises(InputError, match=reason):
        LiveService(Settings.from_environment(variables | change))
