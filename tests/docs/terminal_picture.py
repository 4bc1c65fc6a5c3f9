"""Makes the picture of docs/how-to/top.md: `python -m tests.docs.terminal_picture`.

The shop is that of the pictures of the dashboard. The SVG loads nothing: a viewer shows it in its own monospaced font.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from pathlib import Path

from bullpen import TaskQueue
from bullpen.cli.top.live import TopApp
from tests.docs.markdown import ROOT
from tests.docs.screenshots import APP, FILL, add_history
from tests.scenarios.cli_support import Folder


async def take(folder: Folder) -> str:
    async with TaskQueue(f"sqlite:///{folder.path}/jobs.db") as queue:
        app = TopApp(queue)
        async with app.run_test(size=(100, 28)) as pilot:
            while app.pictures < 2:
                await pilot.pause(0.05)
            await pilot.pause()
            picture = app.export_screenshot(title="bullpen top")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace(str(folder.path), "/srv")


def main() -> None:
    with tempfile.TemporaryDirectory() as path:
        place = Path(path) / "shop"
        place.mkdir()
        folder = Folder(place, APP)
        folder.python(FILL)
        with folder.worker("--concurrency", "8") as worker:
            worker.seen("has no retries left", 8)
            asyncio.run(add_history(folder, random.Random(7)))
            picture = asyncio.run(take(folder))
            worker.send()
            worker.send()
    (ROOT / "docs" / "assets" / "top.svg").write_text(picture)


if __name__ == "__main__":
    main()
