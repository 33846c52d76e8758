"""A real S3 server on loopback: moto's, whose objects live in its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec

READY_WITHIN_S = 60.0
BUCKET = "s3://bucket"


class S3Server:
    """One server, which can be stopped, killed, and started again without its objects."""

    def __init__(self, log: Path, **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._log = log
        self._own = environment
        self.process = self._start()

    @property
    def environment(self) -> Mapping[str, str]:
        """What a client must have in its environment."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "known",
            "AWS_SECRET_ACCESS_KEY": "hidden-word",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.environment['AWS_ENDPOINT_URL']}/bucket")
        request.method = "PUT"
        urllib.request.urlopen(request, timeout=READY_WITHIN_S).close()

    def start_again(self) -> None:
        """Start a server of the same address, which knows nothing."""
        self.process = self._start()
        self.make_bucket()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the server take connections and answer nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                env={**os.environ, **self._own},
                stdout=log,
                stderr=log,
            )
        began = time.monotonic()
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return process
            except OSError:
                alive = process.poll() is None and time.monotonic() - began < READY_WITHIN_S
                assert alive, self._log.read_text()
                time.sleep(0.05)


@contextlib.contextmanager
def s3_server(folder: Path, **environment: str) -> Iterator[S3Server]:
    """Run a server with an empty bucket, unless it refuses to make one."""
    server = S3Server(folder / "s3.log", **environment)
    try:
        if not environment:
            server.make_bucket()
        yield server
    finally:
        server.kill()


def objects_in(url: str) -> set[str]:
    """Return the names of all objects in a place, leftovers among them."""
    files, base = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    return {name.removeprefix(f"{base}/") for name in files.find(base)}


def change_object(url: str, name: str) -> None:
    """Flip the last byte of an object."""
    files, base = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    content = files.cat_file(f"{base}/{name}")
    files.pipe_file(f"{base}/{name}", content[:-1] + bytes([content[-1] ^ 1]))
