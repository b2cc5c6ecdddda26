"""A stand-in for S3 in a process of its own, on loopback, with one bucket: moto's server."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from colmlm.kb import interpreter

BUCKET = "shared"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Runs the server, and gives the environment by which the libraries of object storage find it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = interpreter.command("-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            _make_bucket(address, process)
            yield {**CREDENTIALS, "AWS_ENDPOINT_URL": address}
        finally:
            process.kill()


@contextmanager
def with_permissions(server: dict[str, str], *actions: str) -> Iterator[dict[str, str]]:
    """Has the server ask in the block who may do what, and gives the environment of a user who may do this alone."""
    import boto3

    name = f"user-{uuid4().hex}"
    iam = boto3.client(
        "iam",
        endpoint_url=server["AWS_ENDPOINT_URL"],
        region_name=server["AWS_DEFAULT_REGION"],
        aws_access_key_id=server["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=server["AWS_SECRET_ACCESS_KEY"],
    )
    iam.create_user(UserName=name)
    allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName=name, PolicyName="alone", PolicyDocument=policy)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    _ask_who_may_what_after(server, "0")
    try:
        found = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        yield {**server, **found}
    finally:
        _ask_who_may_what_after(server, "inf")


def _ask_who_may_what_after(server: dict[str, str], requests: str) -> None:
    address = f"{server['AWS_ENDPOINT_URL']}/moto-api/reset-auth"
    headers = {"Content-Type": "text/plain"}
    asked = urllib.request.Request(address, data=requests.encode(), headers=headers, method="POST")
    urllib.request.urlopen(asked).close()


def _make_bucket(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < until, "no moto server"
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()
            return
        time.sleep(0.1)
