"""A stock SuperLink and stock SuperNodes of Flower as processes, and runs of our app on them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

import coterie as ct

HOST = "127.0.0.1"
COMMANDS = Path(sys.executable).parent  # where the commands of flwr are, which call each other
# no telemetry, no search for updates, no installations at run time
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def write_certificate(folder: Path) -> None:
    """Write server.key and a certificate for HOST, server.crt, that is its own authority."""
    folder.mkdir()
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "superlink")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]),
            critical=False,
        )
        .sign(key, hashes.SHA384())
    )
    (folder / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


class StockFlower:
    """A SuperLink with TLS, and a SuperNode with a key for each table; their files in a folder.

    nameless: sites whose keys are registered without a name.
    """

    def __init__(
        self, place: Path, tables: Mapping[str, Path], nameless: Collection[str] = ()
    ) -> None:
        self.place = place
        self.keys = place / "keys"
        write_certificate(self.keys)
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = place / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "{HOST}:{self.port}"\nroot-certificates = "{self.keys / "server.crt"}"\n'
        )
        source = Path(ct.__file__).parent.parent
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(home),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{COMMANDS}:{os.environ['PATH']}",
            "PYTHONPATH": str(source),
        }
        self.start(
            "superlink", "flower-superlink", "--host", HOST, "--port", str(self.port),
            "--ssl-ca-certfile", str(self.keys / "server.crt"),
            "--ssl-certfile", str(self.keys / "server.crt"),
            "--ssl-keyfile", str(self.keys / "server.key"),
            "--enable-supernode-auth",
        )  # fmt: skip
        self.wait_until_it_listens()
        for name, table in tables.items():
            self.register(name, named=name not in nameless)
            self.start_node(name, table)

    def wait_until_it_listens(self, seconds: float = 60.0) -> None:
        """Wait until the SuperLink can be reached."""
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((HOST, self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < end, (self.place / "superlink.log").read_text()
                time.sleep(0.1)

    def start(self, name: str, *words: str) -> None:
        """A command in a session of its own, so that its children can be ended with it."""
        with open(self.place / f"{name}.log", "ab") as output:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=self.place,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def register(self, name: str, named: bool) -> None:
        """Make a key for a site, and tell the SuperLink of it."""
        key = new_key()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (self.keys / name).write_bytes(private)
        (self.keys / f"{name}.pub").write_bytes(public)
        words = ["flwr", "supernode", "register", str(self.keys / f"{name}.pub"), "here"]
        if named:
            words += ["--name", name]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def start_node(self, name: str, table: Path) -> None:
        """A SuperNode with a table of its own."""
        config = f'site="{name}" data="{table}" state="{self.place / "states" / name}" exact=1'
        self.start(
            name, "flower-supernode", "--superlink", f"{HOST}:{self.port}",
            "--root-certificates", str(self.keys / "server.crt"),
            "--auth-supernode-private-key", str(self.keys / name),
            "--host", HOST, "--port", str(free_port()), "--node-config", config,
        )  # fmt: skip

    def run(self, app: Path, seconds: float, **config: str | float | bool) -> str:
        """`flwr run` until it has ended; what it printed."""
        given = " ".join(f"{key}={as_toml(value)}" for key, value in config.items())
        done = subprocess.run(
            ["flwr", "run", str(app), "--stream", "--run-config", given],
            cwd=self.place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        """End all processes, nodes first, and what they have started."""
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._kill_children()

    def _kill_children(self) -> None:
        """End what is left of the sessions, so that no test leaves a process behind."""
        end = time.monotonic() + 15
        groups = [process.pid for process in self.processes.values()]
        while groups and time.monotonic() < end:
            groups = [group for group in groups if has_members(group)]
            time.sleep(0.1)
        for group in groups:
            os.killpg(group, 9)


def has_members(group: int) -> bool:
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def as_toml(value: str | float | bool) -> str:
    """A value of a run config."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)
