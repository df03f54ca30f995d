"""Lesson 9: hear of failures, successes and overruns, and believe only what Shoal has signed.

    export SHOAL_ALERT_SECRET=$(python3 -c 'import secrets; print(secrets.token_urlsafe(32))')
    python examples/09_webhook/receiver.py --port 8900 &
    shoal alert set http://127.0.0.1:8900/       # takes the secret from SHOAL_ALERT_SECRET
    shoal alert test
    shoal run --workers 2 -- false               # a failure is told, too
    shoal alert log                              # what was sent, with the answers

Every message is a POST with a JSON body and three headers. `Shoal-Signature: t=SECONDS,v1=HEX` holds the time and the
HMAC-SHA256 of `SECONDS.BODY` under the secret; `Shoal-Delivery` numbers the message, so that one that comes
again because its answer was lost is not taken for a new one; `Shoal-Event` says what it is about.
"""

import argparse
import hmac
import json
import os
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer

TOLERANCE = 300  # seconds a message may be old: an old one that someone recorded is worth nothing
seen: set[str] = set()


def is_genuine(secret: str, header: str, body: bytes, now: float) -> bool:
    """Whether the header is Shoal's signature of this body, and not an old one."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    at, signature = parts.get("t", ""), parts.get("v1", "")
    if not at.isdigit() or abs(now - int(at)) > TOLERANCE:
        return False
    expected = hmac.new(secret.encode(), f"{at}.".encode() + body, sha256).hexdigest()
    return hmac.compare_digest(expected, signature)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not is_genuine(secret, self.headers.get("Shoal-Signature", ""), body, time.time()):
            print("refused: the signature is wrong or old", flush=True)
            self.send_error(401)
            return
        self.send_response(204)
        self.end_headers()
        number = self.headers["Shoal-Delivery"]
        if number not in seen:
            seen.add(number)
            tell(json.loads(body))

    def log_message(self, *_: object) -> None:
        """Nothing for each request."""


def tell(message: dict) -> None:
    job = message.get("job")
    text = f"{job['name']} {job['state']}: {job['reason']} {job['message']}" if job else message["message"]
    print(f"{message['kind']}: {text}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8900, help="0 lets the system choose")
    options = parser.parse_args()
    secret = os.environ["SHOAL_ALERT_SECRET"]
    server = HTTPServer(("127.0.0.1", options.port), Receiver)
    print(f"listening at http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
