"""Adds up what the workers report. It serves for ever: Shoal ends it when the workers are done."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

parts: dict[str, tuple[int, int]] = {}  # by rank, so that a report that comes twice counts once


class Tally(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/add":
            given = {name: values[0] for name, values in parse_qs(asked.query).items()}
            parts[given["rank"]] = int(given["hits"]), int(given["samples"])
            print(f"worker-{given['rank']} reported {given['hits']} hits", flush=True)
        hits, samples = (sum(column) for column in zip(*parts.values(), strict=True)) if parts else (0, 0)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"parts": len(parts), "hits": hits, "samples": samples}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing for each request: the log is for what matters."""


HTTPServer(("", int(os.environ["SHOAL_PORT_MAIN"])), Tally).serve_forever()
