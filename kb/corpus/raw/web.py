"""Fetches pages by their addresses into a folder, where they are read like other files.

Only addresses that somebody listed are fetched: no link is followed, one page at a time, and a page is limited in
bytes, time and redirects. Hosts of private networks are refused unless they are allowed, by the address that is
connected to, so that a name or a redirect cannot lead there.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from colmlm.kb.corpus.format import Refusal
from colmlm.kb.corpus.raw.blocks import Unreadable
from colmlm.kb.corpus.raw.files import FoundFiles, RawFile, kind_of
from colmlm.kb.network.addresses import Deadline, DeadlineTransport, addresses_of, is_public

MOST_BYTES, MOST_SECONDS, MOST_REDIRECTS = 20_000_000, 60, 5
MOST_BYTES_IN_ALL = 5_000_000_000  # of the pages of one list, which wait on the disk until they are read
_WAIT_SECONDS = 20
_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_KINDS = {
    "text/html": "html", "application/xhtml+xml": "html", "text/plain": "text", "text/markdown": "markdown",
    "application/pdf": "pdf", _WORD: "word", "application/epub+zip": "epub",
}  # fmt: skip
_ACCEPTED = ", ".join((*_KINDS, "*/*;q=0.1"))
_FULL = "the pages before it take all the bytes that the pages of one list may have; name it in another"
_TIMEOUT = httpx2.Timeout(_WAIT_SECONDS).as_dict()


@dataclass(slots=True)
class Fetcher:
    """Fetches pages into a folder, within its `with` block. It keeps a connection to one host at a time."""

    folder: Path
    allow_private: bool = False
    seconds: float = MOST_SECONDS
    bytes_left: int = MOST_BYTES_IN_ALL
    _host: str = field(default="", init=False)
    _client: httpx2.Client | None = field(default=None, init=False)
    _deadline: Deadline = field(default_factory=Deadline, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def fetch(self, addresses: Sequence[str], on_page: Callable[[int, int], None]) -> FoundFiles:
        """Fetch the pages at these addresses, in order; a page that cannot be fetched becomes a refusal."""
        found = FoundFiles()
        for number, address in enumerate(addresses, start=1):
            try:
                found.files.append(self._page(address, self.folder / f"{number:05}"))
            except Unreadable as error:
                found.refusals.append(Refusal(address, 0, str(error)))
            except httpx2.TimeoutException:
                found.refusals.append(Refusal(address, 0, "it took too long"))
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as error:
                found.refusals.append(
                    Refusal(address, 0, f"cannot be fetched: {str(error) or type(error).__name__}")
                )
            on_page(number, len(addresses))
        return found

    def _page(self, address: str, path: Path) -> RawFile:
        if self.bytes_left <= 0:
            raise Unreadable(_FULL)
        url = httpx2.URL(address).copy_with(fragment=None)
        self._deadline.begin(self.seconds)
        for _ in range(MOST_REDIRECTS + 1):
            request = self._request(url)
            response = self._client_of_host(url).send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    file = _store_page(response, url, address, path, self.bytes_left)
                    self.bytes_left -= file.size
                    return file
                url = url.join(response.headers["location"])
            finally:
                response.close()
        raise Unreadable(f"more than {MOST_REDIRECTS} redirects; name the page itself")

    def _request(self, url: httpx2.URL) -> httpx2.Request:
        """Make a request to the IP address that a host's name has now, so that no later DNS answer changes it."""
        if url.scheme not in ("http", "https") or not url.host:
            raise Unreadable(f"it is of {url.scheme or 'no scheme'}, not http:// or https://; correct it")
        if url.userinfo:
            raise Unreadable("it holds a name or a password, which would be stored; leave that out")
        name, number = url.raw_host.decode("ascii"), _ip_address_of(url, self.allow_private)
        headers = {"Host": url.netloc.decode("ascii"), "User-Agent": "colmlm", "Accept": _ACCEPTED}
        how = {"sni_hostname": name, "timeout": _TIMEOUT}
        return httpx2.Request("GET", url.copy_with(host=number), headers=headers, extensions=how)

    def _client_of_host(self, url: httpx2.URL) -> httpx2.Client:
        """Give an HTTP client for this host alone: clients reuse connections by IP address, and hosts may share one."""
        if self._client is None or self._host != url.host:
            self._close()
            transport = DeadlineTransport(self._deadline)
            self._host, self._client = url.host, httpx2.Client(trust_env=False, transport=transport)
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _ip_address_of(url: httpx2.URL, allow_private: bool) -> str:
    """Give the IP address of a host. Raises `Unreadable` if one of its addresses is private, unless `allow_private`."""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = addresses_of(url.raw_host.decode("ascii"), port)
    near = [address for address in found if not is_public(address)]
    if near and not allow_private:
        raise Unreadable(
            f"{url.host} is {near[0]}, of a private network; pass --allow-private if that is meant"
        )
    return str(found[0])


def _store_page(response: httpx2.Response, url: httpx2.URL, address: str, path: Path, left: int) -> RawFile:
    """Store the page of a response in a file, and remove the file again if the page is refused."""
    if response.status_code != 200:
        raise Unreadable(
            f"the server answers {response.status_code} {response.reason_phrase}; check the address"
        )
    said = Message()
    said["content-type"] = response.headers.get("content-type", "application/octet-stream")
    kind = _KINDS.get(said.get_content_type()) or _kind_by_name(said.get_content_type(), url)
    if kind is None:
        raise Unreadable(f"no reader for what the server calls {said.get_content_type()!r}; leave it out")
    try:
        size = _write_body(response, path, left)
    except BaseException:  # also where it is interrupted: half of a page must not be read as one
        path.unlink(missing_ok=True)
        raise
    return RawFile(path, address, kind, size, uri=address, encoding=_encoding(said))


def _write_body(response: httpx2.Response, path: Path, left: int) -> int:
    """Write the body of a response, and give its size. Raises `Unreadable` where it is too large."""
    size = 0
    with path.open("wb") as file:
        for block in response.iter_bytes():
            size += len(block)
            if size > MOST_BYTES:
                raise Unreadable(f"more than {MOST_BYTES} bytes; save it, and split it")
            if size > left:
                raise Unreadable(_FULL)
            file.write(block)
    return size


def _kind_by_name(type_: str, url: httpx2.URL) -> str | None:
    """Give the kind of a page by the end of its address if the server gives no type; else None."""
    kind = kind_of(url.path) if type_ == "application/octet-stream" else None
    return kind if kind in _KINDS.values() else None


def _encoding(said: Message) -> str | None:
    """Give the encoding that the server declares; None if it declares none or an unknown one."""
    try:
        return codecs.lookup(str(said.get_param("charset", ""))).name
    except LookupError:
        return None
