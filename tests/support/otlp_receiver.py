"""An OTLP server over HTTP that keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class OtlpReceiver:
    """Listens on loopback while it is a context.

    `metrics` has the newest metrics by name, `spans` all spans, and `requests` is the number of requests. It answers
    with *status*. Spans for which `refuses` is true get a 413.
    """

    def __init__(self, status: int = 200) -> None:
        self.metrics: dict[str, Any] = {}
        self.spans: list[Any] = []
        self.requests = 0
        self.refuses: Callable[[Sequence[Any]], bool] = lambda spans: False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                answered = status
                if self.path.endswith("/traces"):
                    (traced,) = ExportTraceServiceRequest.FromString(body).resource_spans
                    spans = traced.scope_spans[0].spans
                    if receiver.refuses(spans):
                        answered = 413
                    else:
                        receiver.spans += spans
                else:
                    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
                    (scope,) = resource.scope_metrics
                    receiver.metrics = {metric.name: metric for metric in scope.metrics}
                receiver.requests += 1
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(answered)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/metrics"
        self.traces_url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> OtlpReceiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
