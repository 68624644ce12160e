"""A page in the browser, and what goes wrong on it."""

from pathlib import Path
from typing import Any

PICTURES = Path(__file__).parents[2] / "build" / "web"
"""Where the views' pictures are put, to be looked at."""


class Watched:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Any, served: str, width: int, scheme: str) -> None:
        self.served = served
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on(
            "dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        self.page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.served, "data:", "blob:")):
            self.wrong.append(f"asks another host: {request.url}")

    def open(self, path: str) -> Any:
        self.page.goto(self.served.rstrip("/") + path)
        return self.page
