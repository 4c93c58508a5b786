"""Plays one instruction with the OpenHands SDK; everything comes from the environment."""

import json
import os
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool

llm = LLM(
    model=os.environ["LLM_MODEL"],
    api_key=os.environ["LLM_API_KEY"],
    base_url=os.environ["LLM_BASE_URL"],
)
# Its own reader of configurations puts in no variables.
servers = Path(os.environ["MCP_CONFIG"]).read_text(encoding="utf-8")
token = json.dumps(os.environ.get("ENVIRONMENT_TOKEN", ""))[1:-1]
agent = Agent(
    llm=llm,
    tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)],
    mcp_config=json.loads(servers.replace("${ENVIRONMENT_TOKEN}", token)),
)
conversation = Conversation(
    agent=agent,
    workspace=os.getcwd(),
    max_iteration_per_run=int(os.environ["MAX_ITERATIONS"]),
)
conversation.send_message(os.environ["AGENT_INSTRUCTION"])
conversation.run()
conversation.close()
