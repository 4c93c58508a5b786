"""Presets of agents: ``data/presets/*.json``, by which agents are started against a gateway.

A preset is data: a command line, an environment and files, with placeholders ``{instruction}``,
``{model}``, ``{base_url}``, ``{key}`` and ``{folder}`` for the values of a run. Placeholders are
replaced once and no shell sees the values, so that a placeholder inside a value stays as it is.
Files that end in ``.json`` or ``.yaml`` are written as JSON, ``.toml`` as TOML, so that a value
cannot break out of its string.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputError

DIALECTS = ("chat", "messages", "responses", "google", "any")
_PLACEHOLDER = re.compile(r"\{(instruction|model|base_url|key|folder)\}")
_SHELL_INSTRUCTION = "{{INSTRUCTION}}"
_WHOLE = re.compile(r"(--?[A-Za-z0-9][\w-]*=)?\{\{INSTRUCTION\}\}")
_LONGEST_BYTES = 131_000
"""Linux allows 131,072 bytes for an argument or variable, with its name and its end."""


@dataclass(frozen=True)
class Launch:
    """Command, files and variables of an agent's run. The runtime chooses the working directory."""

    argv: tuple[str, ...]
    """program, searched in ``PATH``, and arguments."""
    environment: Mapping[str, str]
    """variables beside the runtime's."""
    files: Mapping[str, bytes]
    """contents of files by absolute path, written before the start; with the key: mode 600."""
    stdin: bytes = b""
    """standard input of the agent."""
    setup: tuple[tuple[str, ...], ...] = ()
    """commands to run in the same environment before the files are written."""


@dataclass(frozen=True)
class AgentTrial:
    """Outcome of a trial of one version of an agent."""

    version: str
    """version of the package."""
    seen: str
    """observed behaviour with the agent's shell."""
    over_mcp: str = ""
    """observed behaviour over MCP; empty for an agent without MCP, or without a trial."""


@dataclass(frozen=True)
class McpServers:
    """Configuration of MCP servers in an agent's files."""

    file: str
    """the file."""
    at: tuple[str, ...]
    """path of keys to the servers in the file."""
    server: Mapping[str, Any]
    """entry of a server; ``{url}`` stands for its address."""
    token: Mapping[str, Any]
    """additional fields for a server with a token: a reference to the variable
    ``ENVIRONMENT_TOKEN``, whose value no file holds."""


@dataclass(frozen=True)
class Preset:
    """An agent, with templates of its command, files and variables."""

    name: str
    """name of the data file."""
    title: str
    """name of the agent."""
    package: str
    """package, as ``npm:NAME`` or ``pypi:NAME``; empty for a custom command."""
    dialect: str
    """dialect of the requests: chat, messages, responses, google, or any."""
    streaming: bool
    """whether the agent requests streams."""
    argv: tuple[str, ...]
    """template of the command."""
    environment: Mapping[str, str]
    """templates of the variables."""
    files: Mapping[str, Any]
    """templates of files by path; a text names a file in the folder of presets."""
    stdin: str = ""
    """template of the standard input."""
    setup: tuple[tuple[str, ...], ...] = ()
    """templates of commands to run before the agent."""
    mcp: McpServers | None = None
    """configuration of MCP servers; None for an agent without MCP."""
    tried: tuple[AgentTrial, ...] = field(default=())
    """trials of versions, written by ``scripts/try_presets.py``."""
    note: str = ""
    """reasons for the command and its options."""

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
        """The command, files and variables of a run.

        Args:
          instruction: text for the agent, at most 131,000 bytes.
          model: name of the model at the gateway.
          base_url: address of the gateway, without ``/v1``.
          key: key of the session.
          folder: absolute path of the agent's home, for this run only.
          mcp_servers: addresses (streamable HTTP) of MCP servers by name.
          guarded: names of servers that get the variable ``ENVIRONMENT_TOKEN``.

        Raises:
          InputError: a value cannot be passed to the agent, or the agent has no MCP.
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
    """Names of all presets."""
    return sorted(path.stem for path in (data_dir() / "presets").glob("*.json"))


def load_preset(name: str) -> Preset:
    """The preset with a name.

    Raises:
      InputError: the name is unknown, or the file is wrong.
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
    """The preset of a custom command.

    A text is run by ``/bin/sh``: ``{{INSTRUCTION}}`` in it becomes ``"$INSTRUCTION"``, so that the
    instruction is the value of a variable and never part of the shell's command. A list is program
    and arguments, without a shell; ``{{INSTRUCTION}}`` stands for an argument, or for the value of
    ``--name=``.

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
    """Words of a shell's command, with quotes; none for a command without the instruction."""
    if _SHELL_INSTRUCTION not in command:
        return []
    lexer = shlex.shlex(command, posix=False, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        checks.refuse("command", command, f"a command line ({error})")


def _refuse_code(words: Sequence[str]) -> None:
    """Refuses an instruction that a shell, or another program with ``-c``, would run as code."""
    for before, word in zip(["", *words], words, strict=False):
        if _SHELL_INSTRUCTION in word and (re.fullmatch(r"-\w*c", before) or "eval" in words):
            checks.refuse(
                "command", word, f"one in which {_SHELL_INSTRUCTION} is no program of -c or eval"
            )


def _argument(text: str) -> str:
    """The template of one argument."""
    if _SHELL_INSTRUCTION not in text:
        return _escaped(text)
    if not _WHOLE.fullmatch(text):
        allowed = f"an argument that is {_SHELL_INSTRUCTION}, or --name={_SHELL_INSTRUCTION}"
        checks.refuse("command", text, allowed)
    return text.replace(_SHELL_INSTRUCTION, "{instruction}")


def _escaped(text: str) -> str:
    """The template of a literal text."""
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
    """Checks a word that no command line parses as an option; an error omits it as a secret."""
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
    """The template with values in place of all placeholders, in keys too."""
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
    """The part of a configuration with the servers."""
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
    """The union of two objects, merged recursively."""
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
        return tomli_w.dumps(content).encode()
    return json.dumps(content, indent=2).encode() + b"\n"
