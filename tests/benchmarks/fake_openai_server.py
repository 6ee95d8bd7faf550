"""A server that speaks OpenAI's streams and says words by the hundred, without a model: it takes the arguments
of ``ramet serve``, ``llama-server`` and ``vllm serve`` alike, so that benchmarks can start it for any of them.

    python tests/benchmarks/fake_openai_server.py --port 8000 [--fail-at completions] [--silent 2]

A constrained answer is the same valid object each time. With --fail-at that route answers 500, and for the
first --silent seconds every route answers 503, as while a model loads.
"""

import argparse
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STARTED = time.monotonic()
PERSON = json.dumps(
    {
        "name": "A",
        "age": 1,
        "role": "guest",
        "address": {"street": "B", "city": "C", "number": 2},
        "tags": ["d"],
    }
)


class Answers(BaseHTTPRequestHandler):
    """Without what its subclass is configured with, every route answers at once."""

    protocol_version = "HTTP/1.1"
    fails: str = ""
    silent: float = 0.0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if time.monotonic() - STARTED < self.silent:
            return self._whole(503, {"error": {"message": "loading model"}})
        route = self.path.removeprefix("/v1/")
        if route == self.fails:
            return self._whole(500, {"error": {"message": f"{route} fails"}})
        if not body.get("stream"):
            return self._whole(200, {"choices": [{"message": {"role": "assistant", "content": "w0"}}]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in _events(body, is_chat=route == "chat/completions"):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
        return None

    def log_message(self, *_arguments: Any) -> None:
        """Nothing: a client may be gone by then."""

    def _whole(self, status: int, said: dict[str, Any]) -> None:
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    daemon_threads = True
    request_queue_size = 128


def _events(body: dict[str, Any], *, is_chat: bool) -> Iterator[str]:
    words = [f"w{index} " for index in range(body["max_tokens"])]
    if "response_format" in body:
        words = [PERSON[at : at + 8] for at in range(0, len(PERSON), 8)]
    for word in words:
        yield json.dumps({"choices": [{"delta": {"content": word}} if is_chat else {"text": word}]})
    prompt = body.get("prompt") or " ".join(message["content"] for message in body["messages"])
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(words)}
    yield json.dumps({"choices": [], "usage": usage})
    yield "[DONE]"


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fail-at", default="")
    parser.add_argument("--silent", type=float, default=0.0)
    options, _others = parser.parse_known_args()
    answers = type("Configured", (Answers,), {"fails": options.fail_at, "silent": options.silent})
    Server(("127.0.0.1", options.port), answers).serve_forever()


if __name__ == "__main__":
    main()
