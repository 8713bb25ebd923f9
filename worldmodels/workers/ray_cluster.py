"""The connection of this process to a Ray cluster, one for all pools."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import grpc
import ray

from worldmodels.errors import ConfigError

_ANSWER_SECONDS = 10.0
"""Patience with a machine that does not answer; Ray's own is minutes."""


def connect(address: str, cpus: int) -> None:
    """Connect to a Ray cluster, unless this process is connected; until the process ends.

    Args:
        address: "local" starts a cluster on this machine, which ends with this process; "auto" is
            that of ``$RAY_ADDRESS`` or one that runs on this machine; else ``host:port`` of a
            cluster that this machine is part of, or ``ray://host:port`` of one that it is not.
        cpus: workers that a local cluster has room for.

    Raises:
        ConfigError: there is no cluster, or one of another version, or it demands another token.
    """
    if ray.is_initialized():
        return
    where = address
    if address == "auto":
        where = os.environ.get("RAY_ADDRESS") or "auto"  # empty is unset, as for Ray
    _require_answer(address, where)
    local = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        with _own_signal_handlers(), _silence(not local):
            ray.init(where, logging_level=logging.ERROR, log_to_driver=False, **local)
    except Exception as error:  # of many kinds, also in Ray's own documentation
        raise ConfigError(f"workers.address={address}: {_reason(error)}") from error


def _require_answer(address: str, where: str) -> None:
    """Raise `ConfigError` where no Ray can be: Ray itself would try for minutes, or abort."""
    if where in ("auto", "local"):
        return
    try:
        parts = urlsplit(where if "://" in where else f"//{where}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme not in ("", "ray"):
        raise ConfigError(
            f"workers.address={address}: is not an address; give auto, local, host:port or"
            " ray://host:port, an IPv6 host in brackets"
        )
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"workers.address={address}: nothing answers there ({error}); start the cluster with"
            " ray start --head, or choose workers=local"
        ) from error
    if "RAY_USE_TLS" in os.environ:
        return  # with certificates that only Ray has
    try:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with grpc.insecure_channel(target) as channel:
            grpc.channel_ready_future(channel).result(timeout=_ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise ConfigError(
            f"workers.address={address}: what answers there is no Ray cluster; give the port of its"
            " head, 6379, or of Ray Client, ray://host:10001"
        ) from None


def _reason(error: BaseException) -> str:
    """Why Ray did not connect, and what to do."""
    chain = list(_chain(error))
    for one in chain:
        if str(one).startswith("Version mismatch"):
            # The versions of Ray and Python, first those of the cluster.
            found = re.findall(r"^ *(?:Ray|Python): (\S+)$", str(one), re.MULTILINE)
            theirs, ours = (f"Ray {found[at]} and Python {found[at + 1]}" for at in (0, 2))
            return f"the cluster has {theirs}, this machine {ours}; install the same on all"
    for one in chain:
        if "uthenticat" in f"{type(one).__name__}{one}":
            return (
                "the cluster demands a token, or another one (see RAY_AUTH_MODE and RAY_AUTH_TOKEN"
                " in docs/ray.md); give this process the token of the cluster"
            )
    said = " ".join(str(error).split())
    return (
        f"no Ray cluster is there ({said}); start one with ray start --head, or choose"
        " workers=local"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _silence(wanted: bool) -> Iterator[None]:
    """Drop the lines that Ray's library writes to standard error, one a second, while it tries to
    connect: failure is an exception."""
    if not wanted:
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the handlers of this program, in place of which Ray sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
