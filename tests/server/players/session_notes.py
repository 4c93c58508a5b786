"""Notes that a test keeps in place of a session log."""

from __future__ import annotations


class Notes:
    """In a dictionary."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def note(self, key: str) -> str | None:
        return self.texts.get(key)

    async def keep_note(self, key: str, text: str) -> None:
        self.texts[key] = text
