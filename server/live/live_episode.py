"""One live episode: sends every window's requests to the engine and measures the answers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.reference_rollout import episode_traffic
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.live.client_windows import ClientWindows, Sending, read_state, silent_state
from jaxserve.live.engine_client import (
    ChatClient,
    EngineClient,
    EngineError,
    Target,
    cancel,
)
from jaxserve.live.guard import as_values
from jaxserve.live.measured import Streams, measure, observe
from jaxserve.live.prompts import RandomPrompts
from jaxserve.live.readings import EngineState
from jaxserve.sim.reference.request import Request
from jaxserve.spaces import KNOBS, OBSERVATION_BOUNDS, make_action
from jaxserve.tasks.reward import compute_reward
from jaxserve.types import WindowMetrics
from server.live.live_knobs import ConcurrencyCap, offers, turn
from server.live.live_log import LiveLog
from server.live_settings import LiveSettings
from server.request_errors import EngineFailure, RefusedRequest
from server.sessions.episodes import Episode, built_in_task, environment
from server.sessions.programs import PART_NAMES, Knobs, Window, window_figures

_LOG = logging.getLogger("jaxserve.server")
_LEASE_WINDOWS = 2.0
_LONGEST_S = 120.0
"""Seconds of a request at most."""
_CONTROL_S = 10.0
"""Seconds of a control or metrics request at most."""
_SILENT = "the engine did not answer in time"
_NO_ROOM = (429, 503)
"""Statuses of an engine that rejects a request, such as for a full queue."""
_PROBE_S = 10.0
"""Seconds for which the answer of a probe of the engine holds."""
_LEARN_TOKENS = 1200
"""Upper bound of the tokens that ``Prompts.learn`` spends."""
_UNFORESEEN_TOKENS = 10_000
"""Tokens of a request beyond its bound at most, such as a provider's own instructions; an engine
that counts more is not believed."""
_TEMPLATE_TOKENS = 64
"""Tokens that a chat template or a tokenizer adds to a prompt at most."""

_reward = jax.jit(compute_reward)
_figures = jax.jit(window_figures)


class Connection:
    """The connection to the engine, opened by the first reset."""

    def __init__(self, settings: LiveSettings, log: LiveLog) -> None:
        """Sends nothing yet."""
        self.settings, self.log = settings, log
        self.prompts = RandomPrompts(time.time_ns())
        self.tells_priority = bool(settings.priority)
        """whether requests carry the field ``priority``."""
        self._client: EngineClient | None = None
        self._probed_s, self._fault = -math.inf, None

    async def fault(self) -> str | None:
        """Why the engine cannot be used now, None if it can; asks the engine now and then."""
        now = time.monotonic()
        if now - self._probed_s > _PROBE_S:
            self._probed_s = now
            try:
                async with asyncio.timeout(_CONTROL_S), self._new_client():
                    self._fault = None
            except (InputError, TimeoutError) as error:
                self._fault = str(error) or _SILENT
        return self._fault

    def look_again(self) -> None:
        """Lets the next ``fault`` ask the engine: a request has failed."""
        self._probed_s = -math.inf

    def _new_client(self) -> EngineClient:
        s = self.settings
        target = Target(s.url, s.key, s.control_token, s.model)
        return ChatClient(target) if s.chat else EngineClient(target)

    async def open(self) -> EngineClient:
        """The engine's client; the first call learns how many tokens words have.

        Raises:
          EngineFailure: the engine cannot be used. SpendingLimit.
        """
        if self._client is not None:
            return self._client
        try:
            async with asyncio.timeout(_CONTROL_S):
                client = await self._new_client().__aenter__()
        except (InputError, TimeoutError) as error:
            raise EngineFailure(_not_begun(error)) from None
        try:
            self.log.spend(_LEARN_TOKENS)
            async with asyncio.timeout(_LONGEST_S):
                await self.prompts.learn(client)
                if self.settings.priority is None:
                    self.tells_priority = await offers(client, "priority_routing")
        except BaseException as error:
            await client.__aexit__()
            if isinstance(error, EngineError) and error.refused:
                self.log.adjust(self.prompts.learning_tokens - _LEARN_TOKENS)
                self.prompts.learning_tokens = 0
            if isinstance(error, InputError | TimeoutError):
                raise EngineFailure(_not_begun(error)) from None
            raise
        self._client = client
        return client

    async def close(self) -> None:
        """Closes all connections."""
        if self._client is not None:
            await self._client.__aexit__()

    def tokens_of(self, prompt: list[int] | str) -> int:
        """Upper bound of a prompt's tokens: a token of text is at least one byte."""
        if isinstance(prompt, list):
            return len(prompt)
        return len(prompt.encode()) + _TEMPLATE_TOKENS


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A request of a window, cut to the limits."""

    request: Request
    after_s: float
    """arrival, seconds from the start of the window."""
    prompt: list[int] | str
    bound: int
    """upper bound of the request's tokens, in and out."""


class EngineEpisode:
    """One episode under way, for one event loop."""

    def __init__(self, connection: Connection, client: EngineClient, episode: Episode) -> None:
        """Draws the traffic of the episode and compiles its measurement, which takes a moment."""
        self._connection, self._client, self._log = connection, client, connection.log
        self._settings = connection.settings
        # A hosted model has neither knobs nor metrics, and must not see the plug-in's token.
        self._own = None if connection.settings.chat else client
        spec = built_in_task(episode.task)
        env = environment(episode.task, episode.config)
        self._env = _with_limits(env, self._settings)
        self._windows_count = int(self._env.horizon)
        self._active = [
            name
            for name, acts in zip(KNOBS, np.asarray(self._env.knob_active).tolist(), strict=True)
            if acts
        ]
        self._streams = Streams.of(spec)
        self._window_s = float(self._env.window_s)
        traffic = episode_traffic(env, episode.key(), self._windows_count)
        self._traffic: list[list[Request]] = [[] for _ in range(self._windows_count)]
        for request in traffic:
            place = min(int(request.arrival_s / self._window_s), self._windows_count - 1)
            self._traffic[place].append(request)
        _, first = self._env.reset(episode.key())
        self._seen = self._next = first.observation
        self._step = 0
        self._measured = ClientWindows(spec)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = ConcurrencyCap()
        self._failure: str | None = None
        self._until_s = time.monotonic()
        # Compiles the measurement, for which the first window would wait.
        idle, silent = self._measured.window(self._until_s, time.monotonic()), silent_state()
        metrics = measure(self._env, self._streams, idle, silent, silent, self._env.locked)
        _window(self._env, observe(self._env, self._seen, metrics, idle, 0), metrics, False)
        self._until_s = time.monotonic()

    @property
    def in_flight(self) -> int:
        """Number of requests in the engine or waiting for the cap."""
        return len(self._tasks)

    async def window(self, knobs: Knobs) -> tuple[Window, dict[str, Any]]:
        """Holds the knobs for one window of real time; ``accept`` or ``drop`` follows.

        Returns:
          The measured window, and figures of the requests sent.

        Raises:
          SpendingLimit: nothing was sent. EngineFailure: the window does not count, and requests
          in flight were abandoned.
        """
        try:
            return await self._window(knobs)
        except (InputError, TimeoutError) as error:
            self._connection.look_again()
            raise EngineFailure(await self._give_up(str(error) or _SILENT)) from None

    def accept(self) -> None:
        """Moves on to the next window, once the last one is in the log."""
        self._step += 1
        self._seen = self._next

    async def close(self) -> None:
        """Abandons requests in flight, and releases the lease of the knobs."""
        await self.drop()
        if self._own is None:
            return
        try:
            async with asyncio.timeout(_CONTROL_S):
                await self._own.release()
        except (InputError, TimeoutError):
            pass  # the lease expires by itself

    async def _window(self, knobs: Knobs) -> tuple[Window, dict[str, Any]]:
        if self._failure is not None:
            raise InputError(self._failure)
        traffic = self._traffic[self._step]
        chosen = _thinned(traffic, self._settings.max_requests)
        planned = [self._plan(request) for request in chosen]
        asked = dict(zip(KNOBS, knobs, strict=True))
        wanted = as_values(self._env.effective_action(make_action(**asked)))
        async with asyncio.timeout(_CONTROL_S):
            lease_s = _LEASE_WINDOWS * self._window_s
            echo = await turn(self._own, self._gate, self._active, wanted, lease_s)
            before = await self._state()
        booked = sum(each.bound for each in planned)
        self._log.spend(booked)
        start_s = time.monotonic()
        pause_s = start_s - self._until_s
        for each in planned:
            task = asyncio.create_task(self._send(each, start_s + each.after_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(self._window_s)
        async with asyncio.timeout(_CONTROL_S):
            after = await self._state()
        if self._failure is not None:
            raise InputError(self._failure)
        until_s = time.monotonic()
        shown = self._shown(start_s, until_s, (before, after), wanted, echo)
        about = {
            "requests_of_task": len(traffic),
            "requests_sent": len(planned),
            "prompts_cut": _cut(chosen, planned, "prompt_tokens"),
            "outputs_cut": _cut(chosen, planned, "output_tokens"),
            "in_flight": self.in_flight,
            "seconds": until_s - start_s,
            "pause_s": pause_s,
            "knobs": echo,
            "tokens_booked": booked,
            "tokens_spent": self._log.spent,
            "token_limit": self._log.token_limit,
        }
        self._until_s = until_s
        return shown, about

    async def _state(self) -> EngineState:
        found = None if self._own is None else await read_state(self._own)
        return silent_state() if found is None else found

    def _plan(self, request: Request) -> _Planned:
        limits = self._settings
        output = min(request.output_tokens, limits.max_completion_tokens)
        tokens = min(request.prompt_tokens, limits.max_prompt_tokens)
        if self._client.longest is not None:
            output = min(output, max(self._client.longest - 1, 1))
            tokens = max(1, min(tokens, self._client.longest - output))
        prompt = self._connection.prompts.make(tokens)
        return _Planned(
            Request(
                request.id,
                request.arrival_s,
                tokens,
                output,
                request.traffic_class,
                request.priority,
            ),
            request.arrival_s - self._step * self._window_s,
            prompt,
            self._connection.tokens_of(prompt) + output,
        )

    async def _send(self, planned: _Planned, due_s: float) -> None:
        """Sends one request at its arrival and reads it to its last token; gives the booking of a
        request back for which nothing was generated."""
        spent = False
        try:
            await asyncio.sleep(due_s - time.monotonic())
            sending = self._measured.arrived(planned.request, due_s)
            async with asyncio.timeout(_LONGEST_S):
                await self._gate.enter()
                spent = True
                try:
                    await self._ask(planned, sending)
                finally:
                    self._gate.leave()
        except EngineError as error:
            spent = not error.refused
            if error.status in _NO_ROOM:
                self._measured.rejected(sending, str(error))
            else:
                self._failure = self._failure or str(error)
        except InputError as error:
            self._failure = self._failure or str(error)
        except TimeoutError:
            reason = f"the engine did not finish a request within {_LONGEST_S:g} s"
            self._failure = self._failure or reason
        except RefusedRequest as problem:
            self._failure = self._failure or str(problem)
        except Exception as error:
            # The text of an unknown error may hold a key, so it is not logged.
            _LOG.error("a live request ended in %s", type(error).__name__)
            self._failure = self._failure or f"a request ended in {type(error).__name__}"
        finally:
            if not spent:
                with contextlib.suppress(RefusedRequest):  # a log that is gone books nothing
                    self._log.adjust(-planned.bound)

    async def _ask(self, planned: _Planned, sending: Sending) -> None:
        request = planned.request
        headers = {}
        if not self._settings.chat:
            # Headers of the gateway.
            headers = {
                "X-Class": sending.record.class_name,
                "X-Priority": str(request.priority),
            }
        answer = await self._client.complete(
            planned.prompt,
            request.output_tokens,
            headers,
            request.priority if self._connection.tells_priority else None,
            on_output=lambda time_s: self._measured.output(sending, time_s),
        )
        excess = answer.prompt_tokens + answer.output_tokens - planned.bound
        if excess > _UNFORESEEN_TOKENS:
            raise InputError(
                f"the engine counts {planned.bound + excess:,} tokens for a request of at most "
                f"{planned.bound:,}, which is not believed"
            )
        if excess > 0:
            self._log.adjust(excess)
        self._measured.completed(sending, answer)

    def _shown(
        self,
        start_s: float,
        until_s: float,
        states: tuple[EngineState, EngineState],
        wanted: dict[str, float],
        echo: dict[str, dict[str, Any]],
    ) -> Window:
        """The window in the simulator's terms."""
        env = self._env
        window = self._measured.window(self._until_s, until_s)
        # Requests that ended in the pause before the window count in it; time and cost do not.
        window = dataclasses.replace(window, since_s=start_s)
        now = {name: entry["now"] for name, entry in echo.items()}
        locked = as_values(env.locked)
        in_force = make_action(**{n: locked[n] if now.get(n) is None else now[n] for n in wanted})
        metrics = measure(env, self._streams, window, *states, in_force)
        number = self._step + 1
        self._next = observe(env, self._seen, metrics, window, number)
        return _window(env, self._next, metrics, number >= self._windows_count)

    async def _give_up(self, reason: str) -> str:
        """Abandons requests in flight; returns the sentence for the client."""
        await self.drop()
        return (
            f"{reason}; window {self._step} does not count, and requests in flight were given up: "
            "step again, or reset"
        )

    async def drop(self) -> None:
        """Abandons requests in flight; the window under way does not count."""
        await cancel(list(self._tasks))
        self._measured = ClientWindows(self._measured.spec)
        self._gate = ConcurrencyCap()
        self._failure = None
        self._until_s = time.monotonic()


def _not_begun(error: BaseException) -> str:
    return f"{str(error) or _SILENT}; no episode was begun"


def _thinned(requests: Sequence[Request], most: int) -> list[Request]:
    """At most ``most`` requests, evenly chosen."""
    if len(requests) <= most:
        return list(requests)
    return [requests[place * len(requests) // most] for place in range(most)]


def _with_limits(env: ServeEnv, settings: LiveSettings) -> ServeEnv:
    """The environment with the mean lengths of cut prompts and outputs."""

    def mean(quantiles: Any, most: int) -> jax.Array:
        return jnp.asarray(np.minimum(np.asarray(quantiles), most).mean(axis=1), jnp.float32)

    classes = dataclasses.replace(
        env.workload.classes,
        prompt_tokens=mean(env.workload.classes.prompt_quantiles, settings.max_prompt_tokens),
        output_tokens=mean(env.workload.classes.output_quantiles, settings.max_completion_tokens),
    )
    return dataclasses.replace(env, workload=dataclasses.replace(env.workload, classes=classes))


def _cut(asked: Sequence[Request], planned: Sequence[_Planned], name: str) -> int:
    """Number of requests that are shorter than the task's."""
    pairs = zip(asked, planned, strict=True)
    return sum(getattr(one, name) > getattr(other.request, name) for one, other in pairs)


def _window(env: ServeEnv, seen: Any, metrics: WindowMetrics, done: bool) -> Window:
    parts = _reward(env.reward, metrics, done)
    completed, good, failed = (
        float(np.sum(np.asarray(value)))
        for value in (
            metrics.completed,
            metrics.good,
            metrics.completed - metrics.good + metrics.rejected + metrics.lost,
        )
    )
    return Window(
        observation={name: np.asarray(getattr(seen, name)).tolist() for name in OBSERVATION_BOUNDS},
        reward=float(parts.total),
        done=done,
        parts={name: float(getattr(parts, name)) for name in PART_NAMES},
        completed=completed,
        good=good,
        failed=failed,
        figures={name: float(value) for name, value in _figures(env, metrics).items()},
    )
