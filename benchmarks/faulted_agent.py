"""An agent of the fault run: takes some turns, repeats failed ones and notes each answer.

It needs nothing but Python. Its arguments are what it is told, the file of its notes, its turns and
its exit code. Answers noted as ``whole``, by their ids, may not be lost; notes
marked ``failed`` say what was wrong.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request

PATIENCE_S = 300


class HalfAStream(OSError):
    """Error of a stream without its end."""


def ask(messages, stream):
    """Id and text of a complete answer."""
    body = {"model": "stub", "messages": messages, "stream": stream}
    headers = {"content-type": "application/json"}
    headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        id, text = answer.headers["x-gateway-request-id"], answer.read().decode()
    if not stream:
        return id, json.loads(text)["choices"][0]["message"]["content"]
    if not text.endswith("data: [DONE]\n\n"):
        raise HalfAStream
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return id, "".join(choice["delta"].get("content") or "" for choice in choices)


def wrong(error):
    """A few words on a missing or incomplete answer."""
    if isinstance(error, HalfAStream):
        return "half a stream"
    return "connection refused" if "refused" in str(error) else "connection lost"


def note(ledger, line):
    """Appends one line in one write."""
    with open(ledger, "a") as noted:
        noted.write(line + "\n")


def main(instruction, ledger, turns):
    """Takes the turns."""
    messages = [{"role": "user", "content": instruction}]
    for turn in range(turns):
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                id, said = ask(messages, stream=turn % 2 == 1)
                break
            except urllib.error.HTTPError as error:
                note(ledger, f"failed status {error.code}")
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                note(ledger, f"failed {wrong(error)}")
            if time.monotonic() > until:
                sys.exit(3)
            time.sleep(0.25)
        note(ledger, f"whole {id}")
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "On."}]
        time.sleep(0.2)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
sys.exit(int(sys.argv[4]))
