"""`tidemark serve-metrics`: serves metrics to Prometheus, or pushes them."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from tidemark.cli.export.metrics import add_topologies, watched_topologies
from tidemark.cli.shared.options import existing_warehouse, seconds
from tidemark.cli.shared.output import flush, say
from tidemark.errors import InvalidArgument, argument_type
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.extras import require, with_extras
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.safe_text import one_line

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PORT, LAST_PORT, EVERY_S = 9477, 65_535, 15.0
LINEAGE_EVERY_S = 5.0
"""Seconds between two looks at the heartbeats, for events of runs."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topologies(parser)
    host = "address to listen on; anyone who reaches it can read all metrics (default: %(default)s)"
    parser.add_argument("--host", default="127.0.0.1", help=host)
    port = "port; 0: a free one (default: %(default)s)"
    parser.add_argument("--port", type=argument_type(_port), default=PORT, help=port)
    needed = f"needs {with_extras('otlp')}"
    otlp = f"push to this OTLP endpoint instead, for example http://localhost:4318/v1/metrics; {needed}"
    parser.add_argument("--otlp", metavar="URL", help=otlp)
    spans = "also push a span for each batch to this OTLP endpoint, for example http://localhost:4318/v1/traces; of "
    spans += f"topologies with traces; {needed}"
    parser.add_argument("--otlp-traces", metavar="URL", help=spans)
    lineage = "also send the events of runs by the configured client of OpenLineage; "
    lineage += f"needs {with_extras('lineage')}"
    parser.add_argument("--lineage", action="store_true", help=lineage)
    every = "seconds between two pushes of --otlp and --otlp-traces (default: %(default)g)"
    parser.add_argument("--every", type=argument_type(seconds), default=EVERY_S, metavar="S", help=every)


def command(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM.

    Raises InvalidArgument for an unknown topology, a taken port, or without a warehouse.
    """
    layout = Layout(existing_warehouse(options))
    topologies = watched_topologies(options.topologies, layout)
    exporter = Exporter(layout, topologies)
    if options.lineage:
        _send_lineage(layout, partial(_of_streams, topologies))
    if options.otlp_traces is not None:
        _push_spans(layout, partial(_of_streams, topologies), options.otlp_traces, options.every)
    if options.otlp is not None:
        return _push(exporter, options.otlp, options.every)
    registry = CollectorRegistry()
    registry.register(exporter)
    server, thread = serve(registry, options.host, options.port)
    say(f"serving metrics on http://{options.host}:{server.server_port}/metrics")
    flush()
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()
    return 0


def serve(registry: CollectorRegistry, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
    """Serves the metrics of *registry* in a thread; on a loopback address only to requests for this machine.

    Raises:
        InvalidArgument: the address cannot be listened on.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        msg = f"{host}:{port}: {error}; choose another address with --host and --port"
        raise InvalidArgument(msg) from error
    if _is_loopback(host):
        server.set_app(_for_this_machine(make_wsgi_app(registry)))
    return server, thread


def _for_this_machine(app: WSGIApplication) -> WSGIApplication:
    """Returns *app* for requests whose `Host` is this machine; others are refused (421).

    A page of another site can give its own name the address 127.0.0.1, and then read what listens there.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = urlsplit(f"//{environ.get('HTTP_HOST', '')}").hostname
        if host is None or _is_loopback(host):
            return app(environ, start_response)
        text = f"{host} is not this machine; ask for http://127.0.0.1:{environ['SERVER_PORT']}/metrics\n".encode()
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [text]

    return answer


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _port(text: str) -> int:
    """Returns the port of *text*."""
    if not text.isdecimal() or int(text) > LAST_PORT:
        msg = f"a port is a number from 0 to {LAST_PORT}, got {text!r}; for example {PORT}"
        raise InvalidArgument(msg)
    return int(text)


def _of_streams(topologies: Callable[[], list[Topology]]) -> list[Topology]:
    """Returns *topologies* without those of recorded queries.

    Where such a query writes is not known as a table of the warehouse.
    """
    return [each for each in topologies() if not each.jobs]


def _send_lineage(layout: Layout, topologies: Callable[[], list[Topology]]) -> None:
    """Starts a thread that sends the events of runs.

    Raises InvalidArgument if the client of OpenLineage is not configured.
    """
    require("openlineage")
    from tidemark.cli.export.lineage import Sender
    from tidemark.cli.export.lineage_runs import RunReporter

    reporter = RunReporter(layout, topologies, Sender(), partial(say, stream=sys.stderr))
    _beside(reporter.report, LINEAGE_EVERY_S)


def _push_spans(layout: Layout, topologies: Callable[[], list[Topology]], url: str, every_s: float) -> None:
    """Starts a thread that pushes the spans of batches."""
    require("opentelemetry")
    from tidemark.metrics.spans import SpanPusher

    pusher = SpanPusher(layout, topologies, url)
    _beside(_saying(pusher.push, url, "the spans", every_s), every_s)


def _beside(work: Callable[[], object], every_s: float) -> None:
    """Repeats *work* in a thread; an error is printed and ends nothing."""

    def attempt() -> None:
        try:
            work()
        except Exception as error:
            say(f"{type(error).__name__}: {one_line(str(error))}; it is tried again in {every_s:g} s", sys.stderr)

    threading.Thread(target=_repeat, args=(attempt, every_s), daemon=True).start()


def _push(exporter: Exporter, url: str, every_s: float) -> int:
    require("opentelemetry")
    from tidemark.metrics.otlp import OtlpExporter

    otlp = OtlpExporter(exporter, url)
    say(f"pushing metrics to {url} every {every_s:g} s")
    _repeat(_saying(otlp.push, url, "the metrics", every_s), every_s)


def _saying(push: Callable[[], bool], url: str, what: str, every_s: float) -> Callable[[], None]:
    """Returns *push* with a sentence when refusals begin and end."""
    is_refused = False

    def attempt() -> None:
        nonlocal is_refused
        was_refused, is_refused = is_refused, not push()
        if is_refused and not was_refused:
            say(f"{url} did not take {what}; they are pushed again every {every_s:g} s", sys.stderr)
        if was_refused and not is_refused:
            say(f"{url} takes {what} again", sys.stderr)

    return attempt


def _repeat(work: Callable[[], None], every_s: float) -> NoReturn:
    while True:
        work()
        flush()
        threading.Event().wait(every_s)
