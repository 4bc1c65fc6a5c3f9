"""Follows a page as a reader would: writes its files, types its commands, compares what is shown.

    <!-- file: app.py -->       the block is written to this file
    <!-- append: app.py -->     … or added to it
    <!-- terminal: worker -->   the commands of a console block are typed in the terminal of this name, and what
                                stands below each has to be shown; `...` stands for anything
    <!-- ends-with: 1 -->       … and the last of them has this exit code
    <!-- placeholder: 4711 = \\d+; … = … -->   from here on 4711 stands for what was shown in its place at first

An id of a task in a page is a placeholder by itself. A command that goes on, such as a worker, holds its terminal until
`^C`; a block then has to be shown while it runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.docs.markdown import Block, read_blocks

PATIENCE = 90.0
GOES_ON = re.compile(r"bullpen (worker|dashboard)\b|bullpen status --watch")
LOOKING, LOOKS = re.compile(r"bullpen why\b"), 8
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"


class Mismatch(AssertionError):
    pass


class Walkthrough:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._terminals: dict[str, Terminal] = {}
        self._placeholders: dict[str, str] = {}
        self._meanings: dict[str, str] = {}
        self._variables: dict[str, str] = {}

    def follow(self, text: str) -> int:
        """All of a page; how many commands were typed."""
        typed = 0
        try:
            for block in read_blocks(text):
                typed += self._follow_block(block)
        finally:
            for terminal in self._terminals.values():
                terminal.close()
        return typed

    def _follow_block(self, block: Block) -> int:
        marks = block.marks
        if "placeholder" in marks:
            for placeholder in marks["placeholder"].split("; "):
                name, _, pattern = placeholder.partition(" = ")
                self._placeholders[name] = pattern
        if "file" in marks:
            (self._folder / marks["file"]).write_text(block.text)
        elif "append" in marks:
            with (self._folder / marks["append"]).open("a") as file:
                file.write("\n\n" + block.text)
        elif "terminal" in marks:
            terminal = self._terminals.setdefault(marks["terminal"], Terminal(self._folder))
            steps = list(_steps(block))
            for number, (command, expected) in enumerate(steps):
                code = int(marks.get("ends-with", "0")) if number == len(steps) - 1 else 0
                try:
                    self._type_until_it_fits(terminal, command, expected, code)
                except Mismatch as mismatch:
                    raise Mismatch(f"line {block.line}: $ {command}\n{mismatch}") from None
            return len(steps)
        return 0

    def _type_until_it_fits(self, terminal: Terminal, command: str, expected: str, code: int) -> None:
        """What only looks is typed again: a slow machine may show the moment before, or the one after."""
        for _ in range(LOOKS if LOOKING.match(command) else 0):
            try:
                return self._type(terminal, command, expected, code)
            except Mismatch:
                time.sleep(0.3)
        return self._type(terminal, command, expected, code)

    def _type(self, terminal: Terminal, command: str, expected: str, code: int) -> None:
        for name, value in self._meanings.items():
            command = command.replace(name, value)
        if found := re.fullmatch(r"export (\w+)=(\S+)", command):
            self._variables[found[1]] = found[2]
            return
        pattern = self._pattern(expected)
        if command == "^C":
            terminal.interrupt()
        else:
            terminal.start(command, self._variables)
        if command != "^C" and GOES_ON.match(command):
            shown = terminal.wait_for(re.compile(pattern, re.DOTALL))
        else:
            shown = terminal.ended(code)
            if expected and not re.fullmatch(pattern + r"\s*", shown, re.DOTALL):
                raise Mismatch(f"Expected (`...` stands for anything):\n{expected}\nGot:\n{shown}")
        found = re.search(pattern, shown, re.DOTALL)
        if found is not None:
            self._meanings |= {self._named[name]: value for name, value in found.groupdict().items()}

    def _pattern(self, expected: str) -> str:
        """A regular expression for what is to be shown; placeholders that are not known yet are groups."""
        self._named: dict[str, str] = {}
        names = [re.escape(name) for name in sorted(self._placeholders, key=len, reverse=True)]
        parts = re.split(f"({'|'.join([*names, _ID])}|\\.\\.\\.)", expected)
        return "".join(self._part(part) for part in parts)

    def _part(self, part: str) -> str:
        if part == "...":
            return ".*?"
        if part in self._meanings:
            return re.escape(self._meanings[part])
        pattern = self._placeholders.get(part) or (_ID if re.fullmatch(_ID, part) else None)
        if pattern is None:
            return r"\s+".join(re.escape(words) for words in re.split(r"\s+", part))
        known = next((group for group, name in self._named.items() if name == part), None)
        if known is not None:
            return f"(?P={known})"
        group = f"p{len(self._named)}"
        self._named[group] = part
        return f"(?P<{group}>{pattern})"


def _steps(block: Block) -> list[tuple[str, str]]:
    """Commands, each with what is shown below it."""
    steps: list[tuple[str, list[str]]] = []
    for line in block.code:
        if line.startswith("$ ") or line == "^C":
            steps.append((line.removeprefix("$ "), []))
        elif steps:
            steps[-1][1].append(line)
        else:
            raise ValueError(f"line {block.line}: a console block begins with `$ ` or `^C`")
    return [(command, "\n".join(shown).strip()) for command, shown in steps]


class Terminal:
    """Runs one command at a time, with what it shows on both streams."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []

    def start(self, command: str, variables: dict[str, str]) -> None:
        if self._process is not None:
            try:
                self._process.wait(2)  # it may have been killed just now
            except subprocess.TimeoutExpired:
                raise Mismatch("the terminal is still busy with the command before") from None
            self.ended(None)
        self._lines = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        plain = {"PATH": path, "NO_COLOR": "1", "PYTHONUTF8": "1", "PYTHONWARNINGS": "error", "PYTHONPATH": ""}
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}" if GOES_ON.match(command) else command],
            cwd=self._folder,
            env={**os.environ, **plain, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)

    @property
    def shown(self) -> str:
        return "".join(self._lines)

    def wait_for(self, pattern: re.Pattern[str]) -> str:
        deadline = time.monotonic() + PATIENCE
        while not pattern.search(self.shown):
            assert self._process is not None
            if time.monotonic() > deadline or (self._process.poll() is not None and not pattern.search(self.shown)):
                raise Mismatch(f"Expected to see {pattern.pattern}\nGot:\n{self.shown}")
            time.sleep(0.01)
        return self.shown

    def interrupt(self) -> None:
        assert self._process is not None
        self._lines.clear()
        os.killpg(self._process.pid, signal.SIGINT)

    def ended(self, code: int | None) -> str:
        """All that is shown, once the command has ended, with this exit code."""
        process, reader = self._process, self._reader
        assert process is not None
        assert reader is not None
        found = process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()
        self._process = None
        if code is not None and found != code:
            raise Mismatch(f"exit code {found}\n{self.shown}")
        return self.shown

    def close(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.ended(None)
