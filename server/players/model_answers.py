"""Answers of language models."""

from __future__ import annotations

import json
import re
from typing import Any

from jaxserve.spaces import KNOBS
from server.wire.spellings import ALIASES


def first_object(text: str) -> dict[str, Any] | None:
    """The first JSON object of an answer that names a knob, else the first object. The model's
    thoughts and other text are skipped."""
    text = re.sub(r"(?s)^.*</think>|<think>.*$", "", text)
    read = json.JSONDecoder().raw_decode
    objects, start = [], text.find("{")
    while start >= 0:
        try:
            found, end = read(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            objects.append(found)
        start = text.find("{", end)
    naming = [each for each in objects if any(knob in each for knob in (*KNOBS, *ALIASES))]
    return next(iter(naming or objects), None)
