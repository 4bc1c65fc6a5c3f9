"""Reads the code blocks of a Markdown page, and writes its Python blocks as one script with the same line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
_MARK = re.compile(r"^\s*<!--\s*(?P<name>[a-z-]+):\s*(?P<value>\S.*?)\s*-->\s*$")


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of the first line of code, counted from 1
    code: tuple[str, ...]
    marks: Mapping[str, str] = field(default_factory=dict)  # from the comments before it, `<!-- name: value -->`

    @property
    def no_run(self) -> str | None:
        """Why it is not run with the others: the reason given, or that it is a file of a walkthrough."""
        return self.marks.get("no-run") or self.marks.get("file") or self.marks.get("append")

    @property
    def text(self) -> str:
        return "\n".join(self.code) + "\n"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def linked_pages() -> list[Path]:
    """All pages that a reader may open: those above, and those beside the code that they are about."""
    others = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "benchmarks/results/*.md",
        "examples/**/*.md",
    ]
    return [*pages(), *(page for pattern in others for page in sorted(ROOT.glob(pattern)))]


def read_blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    marks: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if fence := _FENCE.match(line):
            start = number
            while number < len(lines) and not _closes(lines[number], fence["ticks"]):
                number += 1
            if number == len(lines):
                raise ValueError(f"the code block that starts at line {start} has no end")
            code = tuple(_unindent(body, fence["indent"]) for body in lines[start:number])
            number += 1
            yield Block(fence["language"].lower(), start + 1, code, marks)
            marks = {}
        elif found := _MARK.match(line):
            marks = {**marks, found["name"]: found["value"]}
        elif line.strip():
            marks = {}


def _closes(line: str, ticks: str) -> bool:
    bare = line.lstrip(" >").rstrip()
    return len(bare) >= len(ticks) and set(bare) == {ticks[0]}


def _unindent(line: str, indent: str) -> str:
    return line.removeprefix(indent) if line.startswith(indent) else line.lstrip(" >")


def python_blocks(text: str) -> list[Block]:
    return [block for block in read_blocks(text) if block.language in ("python", "py")]


def as_script(blocks: list[Block]) -> str:
    """All blocks in their order, each on the lines it has on the page, so that a traceback points at the page."""
    script: list[str] = []
    for block in blocks:
        script += [""] * (block.line - 1 - len(script))
        script += block.code
    return "\n".join(script) + "\n"


def commands(text: str) -> Iterator[tuple[int, str]]:
    """What a reader is told to type: the lines after `$ ` in console blocks, every line in shell ones."""
    for block in read_blocks(text):
        for offset, line in enumerate(block.code):
            if block.language == "console" and line.startswith("$ "):
                yield block.line + offset, line[2:]
            elif block.language in ("bash", "sh", "shell") and line.strip() and not line.startswith("#"):
                yield block.line + offset, line.removeprefix("$ ")
