"""How agents are started against a gateway: ``data/presets/*.json``.

A preset is data: a command line, an environment and files, in which ``{instruction}``, ``{model}``,
``{base_url}``, ``{key}`` and ``{folder}`` stand for the values of a run. Values are put in once and
as they are: no shell sees them, and what looks like a placeholder in one stays as it is. Files that
end in ``.json`` or ``.yaml`` are written as JSON, ``.toml`` as dotted keys, so that a value cannot
break out of its string.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputError

DIALECTS = ("chat", "messages", "responses", "google", "any")
_PLACEHOLDER = re.compile(r"\{(instruction|model|base_url|key|folder)\}")
_SHELL_INSTRUCTION = "{{INSTRUCTION}}"
_WHOLE = re.compile(r"(--?[A-Za-z0-9][\w-]*=)?\{\{INSTRUCTION\}\}")
_LONGEST_BYTES = 131_000
"""Linux gives one argument or variable at most 131,072 bytes, its name and end included."""


@dataclass(frozen=True)
class Launch:
    """All that is needed to start an agent. Its working directory is the runtime's affair."""

    argv: tuple[str, ...]
    """the command; the first one is looked up in ``PATH``."""
    environment: Mapping[str, str]
    """variables beside those of the runtime."""
    files: Mapping[str, bytes]
    """what to write before the start, by absolute path; they hold the key: mode 0600."""
    stdin: bytes = b""
    """what the agent reads; its standard input ends after it."""
    setup: tuple[tuple[str, ...], ...] = ()
    """commands to run with the same environment before the files are written."""


@dataclass(frozen=True)
class AgentTrial:
    """What was seen of one version of an agent."""

    version: str
    """of its package."""
    seen: str
    """what it did with its shell."""
    over_mcp: str = ""
    """what it did over MCP; empty where it knows none, or was not tried."""


@dataclass(frozen=True)
class McpServers:
    """Where an agent looks for MCP servers."""

    file: str
    """the configuration that names them."""
    at: tuple[str, ...]
    """the path of keys to them in it."""
    server: Mapping[str, Any]
    """the entry of one; ``{url}`` stands for its address."""
    token: Mapping[str, Any]
    """what the entry of one that asks for a token has, too: where the agent finds the value of the
    variable ``ENVIRONMENT_TOKEN``. No file has it."""


@dataclass(frozen=True)
class Preset:
    """An agent and how it is started."""

    name: str
    """of the data file."""
    title: str
    """what the agent is called."""
    package: str
    """where it comes from, as ``npm:NAME`` or ``pypi:NAME``; empty for a command of one's own."""
    dialect: str
    """in which it asks: chat, messages, responses, google, or any."""
    streaming: bool
    """whether it asks for streams."""
    argv: tuple[str, ...]
    """template of the command."""
    environment: Mapping[str, str]
    """template of its variables."""
    files: Mapping[str, Any]
    """templates of its files by path; a text names a file beside the presets."""
    stdin: str = ""
    """template of its standard input."""
    setup: tuple[tuple[str, ...], ...] = ()
    """templates of commands to run before."""
    mcp: McpServers | None = None
    """None where it knows no MCP."""
    tried: tuple[AgentTrial, ...] = field(default=())
    """versions that were run, as ``scripts/try_presets.py`` saw them."""
    note: str = ""
    """why it is started as it is."""

    def command(
        self,
        instruction: str,
        model: str,
        base_url: str,
        key: str,
        folder: Path | str,
        mcp_servers: Mapping[str, str] | None = None,
        guarded: Collection[str] = (),
    ) -> Launch:
        """What starts the agent.

        Args:
          instruction: what it is told, at most 131,000 bytes.
          model: name at the gateway.
          base_url: of the gateway, without ``/v1``.
          key: of the session.
          folder: absolute, for this run alone: home and configuration of the agent.
          mcp_servers: addresses (streamable HTTP) by name.
          guarded: names of those that are shown the variable ``ENVIRONMENT_TOKEN``.

        Raises:
          InputError: a value cannot be handed over, or the agent knows no MCP.
        """
        values = {
            "instruction": _instruction(instruction),
            "model": _word("model", model),
            "base_url": _word("base_url", base_url).rstrip("/"),
            "key": _word("key", key),
            "folder": str(_folder(folder)),
        }
        files = {path: _filled(content, values) for path, content in self.files.items()}
        if mcp_servers:
            if self.mcp is None:
                raise InputError(f"mcp_servers are given; preset {self.name} knows no MCP")
            added = _servers(self.mcp, mcp_servers, guarded)
            files[self.mcp.file] = _merged(files.get(self.mcp.file, {}), added)
        return Launch(
            argv=tuple(_filled(list(self.argv), values)),
            environment=_filled(self.environment, values),
            files={
                _filled(path, values): _written(path, content) for path, content in files.items()
            },
            stdin=_filled(self.stdin, values).encode(),
            setup=tuple(tuple(_filled(list(argv), values)) for argv in self.setup),
        )


def preset_names() -> list[str]:
    """All presets that there are."""
    return sorted(path.stem for path in (data_dir() / "presets").glob("*.json"))


def load_preset(name: str) -> Preset:
    """A preset by its name.

    Raises:
      InputError: there is none, or its file is wrong.
    """
    checks.one_of("preset", name, preset_names())
    where = f"preset {name}"
    data = JsonObject(load_json(f"presets/{name}.json"), where, _FIELDS)
    mcp = data.get("mcp")
    return Preset(
        name=name,
        title=data.text("title"),
        package=data["package"],
        dialect=data.one_of("dialect", DIALECTS),
        streaming=data.flag("streaming"),
        argv=tuple(data.entries("argv")),
        environment=data["environment"],
        files=data.get("files", {}),
        stdin=data.get("stdin", ""),
        setup=tuple(map(tuple, data.get("setup", ()))),
        mcp=None if mcp is None else _mcp_of(mcp),
        tried=tuple(AgentTrial(**trial) for trial in data.get("tried", ())),
        note=data.get("note", ""),
    )


def _mcp_of(given: Mapping[str, Any]) -> McpServers:
    return McpServers(given["file"], tuple(given["at"]), given["server"], given["token"])


def shell_preset(command: str | Sequence[str]) -> Preset:
    """A command of one's own.

    A text is run by ``/bin/sh``: ``{{INSTRUCTION}}`` in it becomes ``"$INSTRUCTION"``, so that the
    instruction is the value of a variable and never a part of what the shell reads as a command. A
    list is program and arguments, which no shell reads; ``{{INSTRUCTION}}`` is one of them, or what
    follows ``--name=``.

    Raises:
      InputError: the command is empty, has a byte 0, or would run the instruction.
    """
    texts = [command] if isinstance(command, str) else list(command)
    if not texts or not all(isinstance(text, str) and "\0" not in text for text in texts):
        checks.refuse("command", command, "a text, or a list of texts, without a byte 0")
    if not texts[0].strip():
        checks.refuse("command", command, "a text, or a list of texts, with a program first")
    base = load_preset("shell")
    if isinstance(command, str):
        _refuse_code(_words(command))
        argv = (*base.argv, _escaped(command.replace(_SHELL_INSTRUCTION, '"$INSTRUCTION"')))
    else:
        _refuse_code(texts)
        argv = tuple(_argument(text) for text in texts)
    return replace(base, argv=argv)


_FIELDS = frozenset(Preset.__dataclass_fields__) - {"name"}


def _words(command: str) -> list[str]:
    """What a shell would take for words, quotes included; none where no instruction is in them."""
    if _SHELL_INSTRUCTION not in command:
        return []
    lexer = shlex.shlex(command, posix=False, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        checks.refuse("command", command, f"a command line ({error})")


def _refuse_code(words: Sequence[str]) -> None:
    """Refuses an instruction that a shell, or whatever takes ``-c``, would read as code."""
    for before, word in zip(["", *words], words, strict=False):
        if _SHELL_INSTRUCTION in word and (re.fullmatch(r"-\w*c", before) or "eval" in words):
            checks.refuse(
                "command", word, f"one in which {_SHELL_INSTRUCTION} is no program of -c or eval"
            )


def _argument(text: str) -> str:
    """A template of one argument."""
    if _SHELL_INSTRUCTION not in text:
        return _escaped(text)
    if not _WHOLE.fullmatch(text):
        allowed = f"an argument that is {_SHELL_INSTRUCTION}, or --name={_SHELL_INSTRUCTION}"
        checks.refuse("command", text, allowed)
    return text.replace(_SHELL_INSTRUCTION, "{instruction}")


def _escaped(text: str) -> str:
    """A template that gives this text."""
    if _PLACEHOLDER.search(text):
        raise InputError(
            "command has a placeholder of presets; it must use the variables that "
            "docs/presets.md names"
        )
    return text


def _instruction(text: str) -> str:
    if not text.strip() or "\0" in text:
        checks.refuse("instruction", text, "a text without a byte 0")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        checks.refuse("instruction", text, "text that UTF-8 can hold")
    if size > _LONGEST_BYTES:
        raise InputError(f"instruction has {size} bytes; it must have at most {_LONGEST_BYTES}")
    return text


def _word(name: str, text: str) -> str:
    """One that no command line takes for an option. The key of an error would be a secret."""
    if not re.fullmatch(r"[!-~]+", text) or text.startswith("-"):
        raise InputError(
            f"{name} is not usable; it must be printable ASCII without spaces, not beginning with -"
        )
    return text


def _folder(folder: Path | str) -> Path:
    path = Path(folder)
    if not path.is_absolute() or not str(path).isprintable():
        checks.refuse("folder", str(folder), "an absolute path of printable characters")
    return path


def _filled(template: Any, values: Mapping[str, str]) -> Any:
    """The template with the values in all its texts, keys included."""
    if isinstance(template, str):
        return _PLACEHOLDER.sub(lambda found: values[found[1]], template)
    if isinstance(template, Mapping):
        return {_filled(key, values): _filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, values) for value in template]
    return template


def _servers(
    mcp: McpServers, servers: Mapping[str, str], guarded: Collection[str]
) -> dict[str, Any]:
    """The part of a configuration that names them."""
    entries: Any = {}
    for name, url in servers.items():
        address = _word("address of an MCP server", url)
        entry = {
            key: value.replace("{url}", address) if isinstance(value, str) else value
            for key, value in mcp.server.items()
        }
        entries[_word("name of an MCP server", name)] = {
            **entry,
            **(mcp.token if name in guarded else {}),
        }
    for key in reversed(mcp.at):
        entries = {key: entries}
    return entries


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both, objects inside them too."""
    both = {**old}
    for key, value in new.items():
        inside = both.get(key)
        if isinstance(inside, Mapping) and isinstance(value, Mapping):
            both[key] = _merged(inside, value)
        else:
            both[key] = value
    return both


def _written(path: str, content: Any) -> bytes:
    """The bytes of a file."""
    if isinstance(content, str):
        return (data_dir() / "presets" / content).read_bytes()
    if path.endswith(".toml"):
        return "".join(f"{line}\n" for line in _toml(content, ())).encode()
    return json.dumps(content, indent=2).encode() + b"\n"


def _toml(content: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    """A line for each value. A JSON string in ASCII is one of TOML too."""
    for key, value in content.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _toml(value, path)
        else:
            yield f"{'.'.join(map(json.dumps, path))} = {json.dumps(value)}"
