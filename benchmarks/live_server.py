"""A temporary server for the benchmarks of watching a live server."""
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile

# So that a script that is terminated stops its server.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def as_server():
    """The server does not run as root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


class Server:
    def __init__(self, bin_directory, settings):
        self.bin = pathlib.Path(bin_directory)
        self.directory = tempfile.TemporaryDirectory(prefix="pgassay-live-")
        path = pathlib.Path(self.directory.name)
        if os.getuid() == 0:
            os.chown(path, 65534, 65534)
        self.data = path / "data"
        initdb = [self.bin / "initdb", "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C", "-D", self.data]
        self.run(initdb)
        options = f"-c listen_addresses= -c unix_socket_directories={path} " + " ".join(f"-c {it}" for it in settings)
        try:
            self.run([self.bin / "pg_ctl", "-D", self.data, "-l", path / "log", "-w", "-o", options, "start"])
        except BaseException:
            # It may be starting, and goes on without pg_ctl.
            self.stop()
            raise
        self.env = dict(os.environ, PGHOST=str(path), PGPORT="5432", PGUSER="postgres", PGDATABASE="postgres")

    def run(self, command):
        command = as_server() + [str(it) for it in command]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL)

    def stop(self):
        self.run([self.bin / "pg_ctl", "-D", self.data, "-m", "immediate", "stop"])
        self.directory.cleanup()


class IdleConnections:
    """Sessions that do nothing."""

    def __init__(self, server, number):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        self.sockets = []
        for _ in range(number):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(f"{server.env['PGHOST']}/.s.PGSQL.{server.env['PGPORT']}")
            # The protocol's version 3.0, and parameters.
            body = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"
            connection.sendall(struct.pack("!i", len(body) + 4) + body)
            self.sockets.append(connection)
        for connection in self.sockets:
            wait_until_ready(connection)

    def close(self):
        for connection in self.sockets:
            connection.close()


def wait_until_ready(connection):
    """Reads messages up to ReadyForQuery."""
    with connection.makefile("rb") as stream:
        while True:
            kind = stream.read(1)
            if kind not in (b"R", b"S", b"K", b"Z"):
                raise RuntimeError(f"the server refuses a connection: {stream.read(200)!r}")
            stream.read(struct.unpack("!i", stream.read(4))[0] - 4)
            if kind == b"Z":
                return
