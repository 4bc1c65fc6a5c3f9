"""Fetch pages from a server of which some are slow: each answer in time, or not at all.

No caller waits longer than `timeout`. The socket has its own limit, because a thread cannot be killed: without it, a
fetch whose caller has left would keep its worker until the server answers.
"""

import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bullpen import DeadlineExceeded, Pool


class Pages(BaseHTTPRequestHandler):
    """`/1.5` answers after a second and a half."""

    def do_GET(self) -> None:
        time.sleep(float(self.path[1:]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def fetch(url: str) -> int:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return len(answer.read())


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with Pool(4, name="fetch", max_queue=100) as pool:
            quick = pool.using(timeout=1)
            futures = {page: quick.submit(fetch, f"{address}/{page}") for page in ("0", "0.01", "1.5", "0.02")}
            for page, future in futures.items():
                try:
                    print(f"/{page}: {future.result()} bytes")
                except DeadlineExceeded as error:
                    print(f"/{page}: {error}")
        stats = pool.stats()
        print(f"{stats.completed} in time, {stats.timed_out} too late")
        server.shutdown()


if __name__ == "__main__":
    main()

# prints:
# /0: 5 bytes
# /0.01: 5 bytes
# /1.5: timeout of 1 s passed while it ran
# /0.02: 5 bytes
# 3 in time, 1 too late
