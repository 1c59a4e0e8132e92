"""A written report as a test reads it: its elements, its scripts, and the packed data."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser


def unpacked(text: str) -> str:
    return zlib.decompress(base64.b85decode(text.replace(",", "<")), wbits=-zlib.MAX_WBITS).decode()


class Page(HTMLParser):
    """Collects elements with their attributes, and the content of scripts by their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    @property
    def policy(self) -> dict[str, list[str]]:
        texts = [a["content"] for t, a in self.elements if a.get("http-equiv") == "Content-Security-Policy"]
        return {name: values for name, *values in (part.split() for part in texts[0].split(";"))}

    @property
    def data_text(self) -> str:
        return unpacked(self.scripts[0])

    @property
    def data(self) -> dict:
        return json.loads(self.data_text)
