"""Serves S3 by moto on 127.0.0.1, one request at a time.

Moto looks for an object and then puts it, and another request may come between; S3 does both at once. Moto's own server
also looks for the service of each request, for which it lists its modules: two thirds of a request's CPU time.
"""

import sys
from threading import Lock

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

one_request = Lock()
answered = create_backend_app("s3")


def application(environ, start_response):
    with one_request:
        return answered(environ, start_response)


run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
