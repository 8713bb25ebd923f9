"""A TCP proxy that fails as networks do."""

import contextlib
import selectors
import socket
import threading
import time

PIECE = 4096


class Proxy:
    """Passes connections on to a server of this machine, in a thread.

    Args:
        port: of the server.

    Attributes:
        refusing: new connections are closed at once, and open ones as well.
        cuts: how many connections are still to be cut, each after `cut_after` bytes to the server.
        rate: bytes a second to the server, of each connection; None for all there are.
        stalled: nothing is passed on while it is set, in either direction.
        refused: how many connections were refused.
        slowed: how many bytes went through while `rate` was set.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.refusing, self.cuts, self.cut_after = False, 0, 0
        self.stalled = False
        self.rate: float | None = None
        self.refused, self.slowed = 0, 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                self.refused += 1
                client.close()
            else:
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._server) as server:
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            sent = 0
            while not self.refusing:
                if self.stalled:
                    time.sleep(0.05)
                    continue
                for key, _ in selector.select(0.05):
                    data = key.fileobj.recv(PIECE)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is client:
                        sent += len(data)
                        if self._cut(sent):
                            return
                        if self.rate is not None:
                            self.slowed += len(data)
                            time.sleep(len(data) / self.rate)
                    key.data.sendall(data)
            self.refused += 1

    def _cut(self, sent: int) -> bool:
        with self._lock:
            if self.cuts and sent > self.cut_after:
                self.cuts -= 1
                return True
        return False
