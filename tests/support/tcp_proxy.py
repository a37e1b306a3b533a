"""A TCP proxy that can stall or reset its connections.

It is a network between a client and a broker or a store. A broker must advertise the proxy's address, because clients
connect to the address that it advertises.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from enum import StrEnum
from types import TracebackType

AT_ONCE = 65_536
"""Most bytes that are passed at once."""


class Network(StrEnum):
    """The state of the network between both ends."""

    FORWARDS = "forwards"
    STALLS = "stalls"
    """It accepts connections and passes nothing, until it forwards again."""
    RESETS = "resets"
    """It ends all connections with RST, also new ones."""


class TcpProxy:
    """Forwards connections to *target*, the port of a server.

    It runs in a thread of its own until the `with` block ends. Bytes that arrive while it stalls are kept, as TCP's
    retransmission would, and are passed later.

    Attributes:
        port: where it listens.
        address: the same, with the host.
        connections: accepted so far.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.connections = 0
        self._state = Network.FORWARDS
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="tcp-proxy", daemon=True)

    def __enter__(self) -> TcpProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def forward(self) -> None:
        """Passes everything, and what was kept first."""
        self._become(Network.FORWARDS)

    def stall(self) -> None:
        """Becomes a black hole, for new connections, too."""
        self._become(Network.STALLS)

    def reset(self) -> None:
        """Ends all connections with RST, and each new one."""
        self._become(Network.RESETS)

    def _become(self, state: Network) -> None:
        """Returns when all connections have the new *state*."""
        done = threading.Event()

        def change() -> None:
            self._state = state
            if state is Network.STALLS:
                self._open.clear()
            else:
                self._open.set()
            if state is Network.RESETS:
                for writer in list(self._writers):
                    _reset(writer)
            done.set()

        self._loop.call_soon_threadsafe(change)
        assert done.wait(10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connect, sock=self._socket))
        self._loop.run_forever()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _connect(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(to_client)
        to_server: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()  # what its client sends meanwhile is in the buffer of its socket
            if self._state is Network.RESETS:
                _reset(to_client)
                return
            server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(to_server)
            await asyncio.gather(self._pass(client, to_server), self._pass(server, to_client))
        except OSError:
            _reset(to_client)  # the server is not there
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            for writer in (to_client, to_server):
                if writer is not None:
                    self._writers.discard(writer)
                    writer.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await source.read(AT_ONCE):
                await self._open.wait()
                sink.write(content)
                await sink.drain()
        if not sink.is_closing() and sink.can_write_eof():
            with suppress(OSError):
                sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection without its last bytes."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
