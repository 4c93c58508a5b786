"""Each preset to the letter, and nothing that an instruction says reaches a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.rollouts.harness import Agent
from jaxserve.rollouts.presets import Launch, load_preset, preset_names, shell_preset

NASTY = "-rf \"it's\"\n$(touch gone) `touch gone` ; touch gone # {model} {key}\\ \t'"
URL, KEY = "http://127.0.0.1:9000", "sk-of-the-test"
COMMANDS = {
    "claude_code": "claude --verbose --output-format=stream-json --dangerously-skip-permissions "
    "--model M -p -- I",
    "codex": "codex exec --dangerously-bypass-approvals-and-sandbox --skip-git-repo-check "
    "--model M --json -- I",
    "gemini_cli": "gemini --approval-mode=yolo --model=M --prompt=I",
    "qwen_code": "qwen --yolo --prompt=I",
    "opencode": "opencode -m jaxserve/M run --format=json",
    "openclaw": "openclaw agent --local --json --agent main --model openai/M --message=I",
    "hermes": "hermes --yolo chat --query=I -Q --model M --provider jaxserve",
    "pi": "pi --print --mode json --no-session --provider jaxserve --model M",
    "openhands_sdk": "python /f/openhands_run.py",
}
"""A command as typed by a person, without quotes."""
VARIABLES: dict[str, dict[str, str]] = {
    "claude_code": {
        "CLAUDE_CONFIG_DIR": "/f/claude",
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "M",
        "CLAUDE_CODE_SUBAGENT_MODEL": "M",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "M",
    },
    "codex": {"CODEX_HOME": "/f/codex", "OPENAI_API_KEY": KEY},
    "gemini_cli": {
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": URL,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "HOME": "/f",
    },
    "qwen_code": {"OPENAI_MODEL": "M", "OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": KEY},
    "opencode": {"OPENAI_API_KEY": KEY, "HOME": "/f"},
    "openclaw": {"OPENAI_API_KEY": KEY, "HOME": "/f"},
    "hermes": {"HERMES_HOME": "/f/hermes", "OPENAI_API_KEY": KEY},
    "pi": {"PI_OFFLINE": "1", "PI_CODING_AGENT_DIR": "/f/pi", "OPENAI_API_KEY": KEY},
    "openhands_sdk": {
        "LLM_MODEL": "openai/M",
        "LLM_API_KEY": KEY,
        "LLM_BASE_URL": f"{URL}/v1",
        "AGENT_INSTRUCTION": "I",
        "MAX_ITERATIONS": "100",
    },
}
ADDRESSES: dict[str, tuple[str, list[str]]] = {
    "codex": ("/f/codex/config.toml", ["model_providers", "jaxserve", "base_url"]),
    "opencode": (
        "/f/.config/opencode/opencode.json",
        ["provider", "jaxserve", "options", "baseURL"],
    ),
    "openclaw": ("/f/.openclaw/openclaw.json", ["models", "providers", "openai", "baseUrl"]),
    "hermes": ("/f/hermes/config.yaml", ["providers", "jaxserve", "base_url"]),
    "pi": ("/f/pi/models.json", ["providers", "jaxserve", "baseUrl"]),
}
"""Files in which a preset has the gateway's address, and where in them."""
SERVERS = {
    "claude_code": ("/f/claude/.claude.json", ["mcpServers", "env"], {"type": "http", "url": "U"}),
    "codex": ("/f/codex/config.toml", ["mcp_servers", "env"], {"url": "U"}),
    "gemini_cli": ("/f/.gemini/settings.json", ["mcpServers", "env"], {"httpUrl": "U"}),
    "qwen_code": ("/f/.qwen/settings.json", ["mcpServers", "env"], {"httpUrl": "U"}),
    "opencode": (
        "/f/.config/opencode/opencode.json",
        ["mcp", "env"],
        {"type": "remote", "url": "U", "enabled": True},
    ),
    "openclaw": (
        "/f/.openclaw/openclaw.json",
        ["mcp", "servers", "env"],
        {"url": "U", "transport": "streamable-http"},
    ),
    "hermes": ("/f/hermes/config.yaml", ["mcp_servers", "env"], {"url": "U"}),
    "openhands_sdk": ("/f/mcp.json", ["env"], {"url": "U"}),
}

AUTHORIZATION = {"headers": {"Authorization": "Bearer ${ENVIRONMENT_TOKEN}"}}
TOKENS: dict[str, dict[str, Any]] = dict.fromkeys(SERVERS, AUTHORIZATION) | {
    "codex": {"bearer_token_env_var": "ENVIRONMENT_TOKEN"},
    "opencode": {
        "headers": {"Authorization": "Bearer {env:ENVIRONMENT_TOKEN}"},
        "oauth": False,
    },
}
"""Additional fields in entries of servers with a token."""


def launch(name: str, instruction: str = "I", **more: Any) -> Launch:
    """A launch of a preset, with values that are easy to find."""
    return load_preset(name).command(instruction, "M", f"{URL}/", KEY, "/f", **more)


def inside(launched: Launch, path: str, keys: list[str]) -> Any:
    """A value of a configuration."""
    text = launched.files[path].decode()
    found: Any = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    for key in keys:
        found = found[key]
    return found


def test_the_ten() -> None:
    """The names of the promised presets."""
    assert set(preset_names()) == {*COMMANDS, "shell"} and len(COMMANDS) == 9


@pytest.mark.parametrize("name", COMMANDS)
def test_to_the_letter(name: str) -> None:
    """Command, variables, and the address in files."""
    launched = launch(name)
    assert " ".join(launched.argv) == COMMANDS[name]
    assert launched.environment.items() >= VARIABLES[name].items()
    assert launched.stdin == (b"I" if name in ("opencode", "pi") else b"")
    assert all(path.startswith("/f/") for path in launched.files)
    if name in ADDRESSES:
        assert inside(launched, *ADDRESSES[name]) == f"{URL}/v1"
    setup = (("openclaw", "setup", "--baseline", "--workspace", "."),) if name == "openclaw" else ()
    assert launched.setup == setup


@pytest.mark.parametrize("name", preset_names())
def test_no_file_holds_the_key(name: str) -> None:
    """The key is in the environment only, not on a command line."""
    launched = launch(name)
    assert not any(KEY.encode() in data for data in launched.files.values())
    assert KEY in launched.environment.values()
    assert not any(KEY in argument for argument in launched.argv)


@pytest.mark.parametrize("name", SERVERS)
def test_servers_of_tools(name: str) -> None:
    """Beside what the file has without them."""
    launched = launch(name, mcp_servers={"env": "U"})
    path, keys, entry = SERVERS[name]
    assert inside(launched, path, keys) == entry
    if name in ADDRESSES:
        assert inside(launched, *ADDRESSES[name]) == f"{URL}/v1"


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_asks_for_a_token(name: str) -> None:
    """Only a server with the environment's origin gets the token."""
    urls = {"env": "http://e:80/mcp", "at_another_port": "http://e:81/mcp", "other": "http://o/mcp"}
    agent = Agent(load_preset(name), "M", urls)
    path, keys, _ = SERVERS[name]
    for environment, shown in (("http://e", {"env"}), (None, set()), ("http://[", set())):
        launched = agent.launch("I", URL, KEY, Path("/f"), environment)
        servers = inside(launched, path, keys[:-1])
        assert {one for one in urls if servers[one].items() >= TOKENS[name].items()} == shown
        assert (b"ENVIRONMENT_TOKEN" in launched.files[path]) == bool(shown)


OPENHANDS = {
    "sdk": """
import json

class Made:
    name = "made"
    send_message = run = close = lambda self, *said: None

    def __init__(self, **given):
        if "mcp_config" in given:
            print(json.dumps(given["mcp_config"]))

LLM = Agent = Conversation = Tool = Made
""",
    "tools/file_editor": "from openhands.sdk import Made as FileEditorTool",
    "tools/terminal": "from openhands.sdk import Made as TerminalTool",
}
"""Stand-ins for its modules; an agent prints its servers."""


def test_openhands_puts_it_in(tmp_path: Path) -> None:
    """Its runner fills in the variable, which its configuration reader does not."""
    for name, code in OPENHANDS.items():
        module = tmp_path / "openhands" / name
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(code)
    preset = load_preset("openhands_sdk")
    agent = Agent(preset, "M", {"env": "http://e/mcp"})
    launched = agent.launch("I", URL, KEY, tmp_path, "http://e")
    for path, content in launched.files.items():
        Path(path).write_bytes(content)
    token = 'a"b\\c'
    for more in ({"ENVIRONMENT_TOKEN": token}, {}):
        variables = {**os.environ, **launched.environment, **more, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, *launched.argv[1:]]
        printed = subprocess.run(command, env=variables, capture_output=True, check=True).stdout
        entry = json.loads(printed)["env"]
        assert entry["headers"]["Authorization"] == f"Bearer {token if more else ''}"


@pytest.mark.parametrize("name", ["pi", "shell"])
def test_no_servers_of_tools(name: str) -> None:
    """Said, not ignored."""
    with pytest.raises(InputError, match=f"preset {name} knows no MCP"):
        launch(name, mcp_servers={"env": "U"})


@pytest.mark.parametrize("name", COMMANDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_an_instruction_arrives_as_it_is(name: str, text: str) -> None:
    """The instruction is one argument, one variable or the input, and never an option."""
    if not text.strip():
        return
    launched, plain = launch(name, text), launch(name)
    places = zip(launched.argv, plain.argv, strict=True)
    changed = [(new, old) for new, old in places if new != old]
    for new, old in changed:
        assert new == old.removesuffix("I") + text
        assert old.startswith("--") or launched.argv[-2] == "--"
    told = [launched.environment.get("AGENT_INSTRUCTION"), launched.stdin.decode()]
    assert changed or text in told or text == "I"
    assert launched.files == plain.files


@pytest.mark.parametrize("instruction", [NASTY, "x" * 100_000, "--help", "'", "@file", "-"])
@pytest.mark.parametrize(
    "command",
    [
        "printf %s {{INSTRUCTION}}",
        'printf %s "$INSTRUCTION"',
        "cat <<EOF\n$INSTRUCTION\nEOF",
    ],
)
def test_a_command_of_ones_own(instruction: str, command: str, tmp_path: Path) -> None:
    """The shell gets the instruction as a value: it arrives whole, and none of it runs."""
    launched = shell_preset(command).command(instruction, "M", URL, KEY, tmp_path / "f")
    environment = {**launched.environment, "PATH": os.environ["PATH"]}
    done = subprocess.run(launched.argv, env=environment, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0 and done.stdout.decode().removesuffix("\n") == instruction
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "quoted", ['"{{INSTRUCTION}}"', "'{{INSTRUCTION}}'", "$(echo {{INSTRUCTION}})"]
)
def test_wrong_quotes_run_nothing(quoted: str, tmp_path: Path) -> None:
    """They may spoil the text, but it does not become a command."""
    launched = shell_preset(f"printf %s {quoted}").command(NASTY, "M", URL, KEY, tmp_path / "f")
    environment = {**launched.environment, "PATH": os.environ["PATH"]}
    subprocess.run(launched.argv, env=environment, cwd=tmp_path, capture_output=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"instruction": ""}, "instruction is ''"),
        ({"instruction": "a\0b"}, "without a byte 0"),
        ({"instruction": "\ud800"}, "UTF-8"),
        ({"instruction": "ä" * 65_501}, "has 131002 bytes; it must have at most 131000"),
        ({"model": "-m"}, "model is not usable"),
        ({"model": "a b"}, "model is not usable"),
        ({"key": "a\nb"}, "key is not usable"),
        ({"folder": "here"}, "an absolute path"),
    ],
)
def test_what_is_refused(change: dict[str, str], said: str) -> None:
    """The error is one sentence without the key."""
    values = {"instruction": "I", "model": "M", "base_url": URL, "key": KEY, "folder": "/f"}
    with pytest.raises(InputError, match=said) as caught:
        load_preset("codex").command(**{**values, **change})
    assert values["key"] not in str(caught.value)


def test_unknown_presets_and_empty_commands() -> None:
    """The names are said."""
    with pytest.raises(InputError, match="must be one of claude_code, codex"):
        load_preset("../codex")
    for command in ("", " ", "a\0"):
        with pytest.raises(InputError, match="command is"):
            shell_preset(command)
    with pytest.raises(InputError, match="placeholder of presets"):
        shell_preset("echo {key}")
