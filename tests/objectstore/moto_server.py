"""Serves S3 by moto on 127.0.0.1, one request at a time.

Moto looks for an object and then puts it, and another request may come between; S3 does both at once.
"""

import sys
from threading import Lock

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

one_request = Lock()
answered = DomainDispatcherApplication(create_backend_app)


def application(environ, start_response):
    with one_request:
        return answered(environ, start_response)


run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
