"""The nodes of a service: who is there, who gets what, and what becomes of what a lost one had.

What nodes have stands in the database and nowhere else, so that no heartbeat can change it. When a
node was last heard is known to this process only: a new one gives all of them time to be heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from jaxserve.checks import JsonObject, address, refuse
from jaxserve.rollouts.service.cluster.balance import (
    SILENT,
    NodeStatus,
    assign_sessions,
    node_health,
)
from jaxserve.rollouts.service.settings import NODE_NAME, POOLS, RolloutSettings
from jaxserve.rollouts.service.state import lifecycle
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.leases import Lease
from jaxserve.runtime.hosts import is_loopback

_MOST_GIVEN = 10_000
"""Sessions that wait which one look considers."""


@dataclass
class _Heard:
    """Of a node, by this process."""

    at_s: float
    load: Any = None


class UnknownNode(Exception):
    """No such start of a node is registered."""


class NodeRegistry:
    """All of them."""

    def __init__(
        self,
        state: StateDatabase,
        settings: RolloutSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: where sessions stand, what the operator chose, and a clock, s."""
        self._state, self._settings, self._clock = state, settings, clock
        self._heard: dict[str, _Heard] = {}
        self._began_s = clock()

    def register(self, asked: JsonObject, *, elsewhere: bool = False) -> str:
        """A node begins; one of its name that was there before is lost. Gives its name.

        Args:
          elsewhere: whether it is on another machine, so that addresses of this one are not its.

        Raises:
          InputError: a field is wrong.
        """
        id, start = asked.text("id"), asked.text("start")
        if not NODE_NAME.fullmatch(id):
            refuse(asked.name("id"), id, "up to 64 letters, digits, - and _, no - or _ first")
        pools = asked.inside("pools", POOLS)
        models = asked.get("models", [])
        if not isinstance(models, list) or not all(isinstance(one, str) for one in models):
            refuse(asked.name("models"), models, "a list of names")
        control = address(asked.name("control"), asked.get("control"))
        if elsewhere and _is_of_this_machine(control):
            allowed = "one at which the service reaches the node's machine (--control-url)"
            refuse(asked.name("control"), control, allowed)
        about = {
            "pools": {name: pools.whole(name, 1, 1024) for name in POOLS},
            "models": models,
            "gateway": address(asked.name("gateway"), asked.get("gateway")),
            "control": control,
        }
        if self._state.start_of(id) not in (None, start):
            # First: keys are open at the gateway that it used until now.
            self._state.take_back(id, self._settings.attempts, resumes=True)
        self._state.put_node(id, start, about)
        self._heard[id] = _Heard(self._clock())
        return id

    def heard(self, id: str, start: str, load: Any = None) -> None:
        """A heartbeat.

        Args:
          load: what the node says of itself, for whoever looks.

        Raises:
          UnknownNode: it has to register first.
        """
        if not any((id, start) == node[:2] for node in self._state.nodes()):
            raise UnknownNode
        self._heard[id] = _Heard(self._clock(), load)

    def alive(self, id: str, load: Any) -> None:
        """The service's own node is, as long as the service is."""
        self._heard[id] = _Heard(self._clock(), load)

    def leases(self, id: str) -> list[Lease]:
        """All that a node has."""
        specs: dict[str, Any] = {}
        found = []
        for session in self._state.held_by(id):
            if session.task not in specs:
                specs[session.task] = self._state.spec(session.task)
            found.append(Lease(session, specs[session.task]))
        return found

    def drain(self, id: str, draining: bool) -> None:
        """Whether it gets no more sessions.

        Raises:
          InputError: there is no such node.
        """
        if all(id != node[0] for node in self._state.nodes()):
            refuse("node", id, "one that has registered")
        self._state.drain(id, draining)

    def leave(self, id: str, start: str) -> None:
        """It ends, and what it has begins elsewhere.

        Raises:
          UnknownNode: it is none.
        """
        self.heard(id, start)
        self._heard[id] = _Heard(-float("inf"))
        self._state.take_back(id, self._settings.attempts, resumes=False)

    def look(self) -> None:
        """Takes what lost nodes had, ends what waited for too long, and gives what waits."""
        views = self.views()
        for node in views:
            if node.health == SILENT and self._state.held_by(node.id):
                self._state.take_back(node.id, self._settings.attempts, resumes=False)
        waiting = self._state.waiting(_MOST_GIVEN)
        if not waiting:
            return
        for session, node in assign_sessions(views, [(id, model) for id, model, _ in waiting]):
            self._state.give(session, node)
        late = time.time() - self._settings.queue_s
        for id, _, since in waiting:
            session = self._state.session(id)
            if since < late and session.node is None:
                reason = f"no node took it within {self._settings.queue_s:g} s"
                self._state.move(
                    id, lifecycle.ERROR, reason, session.lease, result=session.no_result
                )

    def views(self) -> list[NodeStatus]:
        """All nodes as they are now."""
        loads = self._state.loads()
        now = self._clock()
        found = []
        for id, _, about, draining in self._state.nodes():
            silence_s = now - (self._heard[id].at_s if id in self._heard else self._began_s)
            held = sum(
                count
                for state, count in loads.get(id, {}).items()
                if state not in lifecycle.AFTER_RUN
            )
            pools = about["pools"]
            found.append(
                NodeStatus(
                    id,
                    node_health(silence_s, draining, self._settings.silent_s),
                    pools["init"] + pools["run"],
                    held,
                    tuple(about["models"]),
                )
            )
        return found

    def control_of(self, id: str) -> str | None:
        """Address of the control door of a node's gateway."""
        return next((one[2]["control"] for one in self._state.nodes() if one[0] == id), None)

    def describe(self) -> list[dict[str, Any]]:
        """For whoever looks."""
        views = {view.id: view for view in self.views()}
        loads: Mapping[str, Any] = self._state.loads()
        return [
            {
                "id": id,
                "health": views[id].health,
                "slots": views[id].slots,
                "held": views[id].held,
                "states": loads.get(id, {}),
                "load": self._heard[id].load if id in self._heard else None,
                **about,
            }
            for id, _, about, _ in self._state.nodes()
        ]


def _is_of_this_machine(url: str) -> bool:
    """Whether every machine takes a checked address for its own."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    return is_loopback(host) or host in ("0.0.0.0", "::")
