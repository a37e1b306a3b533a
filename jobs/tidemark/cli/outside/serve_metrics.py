"""`tidemark serve-metrics`: serves metrics to Prometheus, or pushes them."""

from __future__ import annotations

import argparse
import sys
import threading

from prometheus_client import CollectorRegistry, start_http_server

from tidemark.cli.outside.metrics import add_topologies, watched_topologies
from tidemark.cli.shared.options import existing_warehouse, seconds
from tidemark.cli.shared.output import flush, say
from tidemark.errors import InvalidArgument, argument_type
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.extras import require
from tidemark.model.project.layout import Layout

PORT, LAST_PORT, EVERY_S = 9477, 65_535, 15.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topologies(parser)
    host = "address to listen on; anyone who reaches it can read all metrics (default: %(default)s)"
    parser.add_argument("--host", default="127.0.0.1", help=host)
    port = "port; 0: a free one (default: %(default)s)"
    parser.add_argument("--port", type=argument_type(_port), default=PORT, help=port)
    otlp = "push to this OTLP endpoint instead, for example http://localhost:4318/v1/metrics; needs tidemark[otlp]"
    parser.add_argument("--otlp", metavar="URL", help=otlp)
    every = "seconds between two pushes of --otlp (default: %(default)g)"
    parser.add_argument("--every", type=argument_type(seconds), default=EVERY_S, metavar="S", help=every)


def command(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM.

    Raises InvalidArgument for an unknown topology, a taken port, or without a warehouse.
    """
    layout = Layout(existing_warehouse(options))
    exporter = Exporter(layout, watched_topologies(options.topologies, layout))
    if options.otlp is not None:
        return _push(exporter, options.otlp, options.every)
    registry = CollectorRegistry()
    registry.register(exporter)
    try:
        server, thread = start_http_server(options.port, options.host, registry)
    except OSError as error:
        msg = f"{options.host}:{options.port}: {error}; choose another address with --host and --port"
        raise InvalidArgument(msg) from error
    say(f"serving metrics on http://{options.host}:{server.server_port}/metrics")
    flush()
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()
    return 0


def _port(text: str) -> int:
    """Returns the port of *text*."""
    if not text.isdecimal() or int(text) > LAST_PORT:
        msg = f"a port is a number from 0 to {LAST_PORT}, got {text!r}; for example {PORT}"
        raise InvalidArgument(msg)
    return int(text)


def _push(exporter: Exporter, url: str, every_s: float) -> int:
    require("opentelemetry")
    from tidemark.metrics.otlp import OtlpExporter

    otlp = OtlpExporter(exporter, url)
    say(f"pushing metrics to {url} every {every_s:g} s")
    while True:
        if not otlp.push():
            say(f"{url} did not take the metrics; they are pushed again in {every_s:g} s", sys.stderr)
        flush()
        threading.Event().wait(every_s)
