"""The account of an Azure container: its address, and the credentials that sign a request."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qsl, urlsplit

from sparkwal.errors import OptionError
from sparkwal.store.base import Transient
from sparkwal.store.concealing import conceal
from sparkwal.store.config import S3Config, is_unencrypted, normal_endpoint
from sparkwal.store.rest import Request
from sparkwal.store.tokens import Token

_VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
# Hosts of Azure. A path with another host would get this process's tokens.
_HOST = re.compile(
    r"([a-z0-9]{3,24})\.(?:dfs|blob)\."
    r"(core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net)"
)
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_KEYS = ("ACCOUNT_KEY", "ACCESS_KEY", "KEY")
_SAS = ("SAS_TOKEN", "SAS_KEY")
# The headers that a shared key signs, in this order.
_SIGNED = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


@dataclass(frozen=True)
class Account:
    """An account.

    Attributes:
        name: its name.
        blobs: the URL of its blobs.
        url: the root of a container as a name, with {} for the container.
        key: the account's key, if one was given.
        sas: the parameters of a shared access signature, if one was given.
        source: where the key or the signature was found.
    """

    name: str
    blobs: str
    url: str
    key: bytes | None = field(default=None, repr=False)
    sas: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    source: str = ""

    def credentials(self) -> str:
        """Where the credentials come from, and the end of a signature. It shows no secret.

        Raises:
            OptionError: none were found, or the signature has ended.
            Transient: the service of tokens did not answer.
        """
        if self.key is not None:
            return self.source
        if not self.sas:
            self.sign(Request("GET", self.blobs, {}, {}))
            return _identity()
        ends = dict(self.sas).get("se", "")
        if _is_past(ends):
            raise OptionError(f"the signature in {self.source} ended at {ends}: make another")
        return f"{self.source}, until {ends}" if ends else self.source

    def sign(self, request: Request) -> Request:
        """Add the credentials to a request.

        Raises:
            OptionError: none were found.
            Transient: the service of tokens did not answer.
        """
        headers = {**request.headers, "x-ms-date": formatdate(usegmt=True)}
        headers.setdefault("x-ms-version", _VERSION)
        request = replace(request, headers=headers)
        if self.key is not None:
            return replace(request, headers={**headers, "Authorization": self._shared_key(request)})
        if self.sas:
            return replace(request, query={**request.query, **dict(self.sas)})
        if is_unencrypted(self.blobs):
            raise OptionError(f"{self.blobs} has no TLS, and a token needs it: write https://")
        return replace(request, headers={**headers, "Authorization": f"Bearer {TOKEN.text()}"})

    def _shared_key(self, request: Request) -> str:
        assert self.key is not None
        size = str(len(request.body)) if request.body else ""
        values = {**request.headers, "Content-Length": size}
        lines = [request.method, *(values.get(name, "") for name in _SIGNED)]
        own = {name.lower(): value for name, value in request.headers.items()}
        lines += [f"{name}:{own[name]}" for name in sorted(own) if name.startswith("x-ms-")]
        lines.append(f"/{self.name}{urlsplit(request.url).path}")
        lines += [f"{name.lower()}:{request.query[name]}" for name in sorted(request.query)]
        signature = hmac.digest(self.key, "\n".join(lines).encode(), hashlib.sha256)
        return f"SharedKey {self.name}:{base64.b64encode(signature).decode()}"


def account_of(authority: str, config: S3Config) -> tuple[Account, str]:
    """The account and the container of a path.

    Args:
        authority: what stands between "://" and the first "/".
        config: endpoint, accessKeyId (the account's name) and secretAccessKey (its key).

    Raises:
        OptionError: the account is unknown, or a name is none. No message shows a secret.
    """
    container, _, host = authority.partition("@")
    named, suffix = _of_host(host) if host else ("", "core.windows.net")
    connection = _connection_string()
    environment = connection.get("AccountName") or _first("ACCOUNT_NAME", "ACCOUNT")
    name = named or config.access_key_id or environment
    if not name or not _ACCOUNT.fullmatch(name):
        raise OptionError(
            "the path names no Azure account: write abfss://container@account.dfs.core.windows.net"
            "/folder, or give the account's name in AZURE_STORAGE_ACCOUNT_NAME"
        )
    # What the environment has for one account is not sent to another.
    is_own = environment in ("", name)
    endpoint = config.endpoint
    if endpoint is None and is_own:
        endpoint = connection.get("BlobEndpoint") or _first("ENDPOINT") or None
        if endpoint is None and not named:
            suffix = connection.get("EndpointSuffix", suffix)
    blobs = f"https://{name}.blob.{suffix}"
    # Its name is the same, however its address is written.
    url = f"abfss://{{}}@{name}.dfs.{suffix}"
    if endpoint is not None:
        endpoint = normal_endpoint(endpoint)
        if endpoint != blobs:
            blobs, url = endpoint, f"{endpoint}/{{}}"
    account = Account(name, blobs, url)
    if config.secret_access_key is not None:
        if config.access_key_id != name:
            raise OptionError(
                "accessKeyId is another account than the path's: give the account's own name and "
                "key, or neither"
            )
        key = _decoded(config.secret_access_key)
        return replace(account, key=key, source="the option secretAccessKey"), container
    return (_with_environment(account, connection) if is_own else account), container


def _of_host(host: str) -> tuple[str, str]:
    match = _HOST.fullmatch(host)
    if match is None:
        raise OptionError(
            "the path's host is none of Azure Blob Storage: write abfss://container@account.dfs."
            "core.windows.net/folder. For another server give its URL in the option endpoint"
        )
    return match[1], match[2]


def _with_environment(account: Account, connection: dict[str, str]) -> Account:
    """The account with the key or the signature of the environment, if it has one."""
    in_connection = "AZURE_STORAGE_CONNECTION_STRING"
    if key := connection.get("AccountKey") or _first(*_KEYS):
        source = in_connection if "AccountKey" in connection else _variable(*_KEYS)
        return replace(account, key=_decoded(key), source=source)
    sas = connection.get("SharedAccessSignature") or _first(*_SAS)
    source = in_connection if "SharedAccessSignature" in connection else _variable(*_SAS)
    # A "+" in it is no space.
    pairs = tuple(parse_qsl(sas.lstrip("?").replace("+", "%2B")))
    if sas and "sig" not in dict(pairs):
        raise OptionError(
            "AZURE_STORAGE_SAS_TOKEN is no shared access signature: it has no sig. (The value is "
            "not shown)"
        )
    conceal([value for name, value in pairs if name == "sig"])
    return replace(account, sas=pairs, source=source if sas else "")


def _first(*names: str) -> str:
    return os.environ.get(_variable(*names), "")


def _variable(*names: str) -> str:
    """The name of the first variable that has a value, or "" if none has."""
    variables = (f"AZURE_STORAGE_{name}" for name in names)
    return next(filter(os.environ.get, variables), "")


def _is_past(text: str) -> bool:
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        return False
    return end.replace(tzinfo=end.tzinfo or UTC) < datetime.now(UTC)


def _identity() -> str:
    """What azure-identity finds first with these variables."""
    names = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET")
    if all(map(os.environ.get, names)):
        return "the service principal of AZURE_CLIENT_ID"
    if os.environ.get("AZURE_FEDERATED_TOKEN_FILE"):
        return "the workload identity of AZURE_FEDERATED_TOKEN_FILE"
    return "a managed identity or az login"


def _connection_string() -> dict[str, str]:
    text = _first("CONNECTION_STRING")
    pairs = (part.partition("=") for part in text.split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _decoded(key: str) -> bytes:
    try:
        decoded = base64.b64decode(key, validate=True)
    except ValueError:
        decoded = b""
    if not decoded:
        raise OptionError(
            "the key of the Azure account is no base64: correct it at its source. (The value is "
            "not shown)"
        )
    conceal([key])
    return decoded


def _new_token() -> tuple[str, float]:
    """A token of the managed identity, the environment or the Azure CLI, and its end."""
    try:
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.identity import CredentialUnavailableError, DefaultAzureCredential
    except ImportError:
        raise OptionError(
            "azure-identity is missing, which gets Azure's tokens: pip install '.[clouds]' "
            "here and on each executor, or give the account's key"
        ) from None
    # Messages of these libraries show parts of requests, so none is passed on.
    try:
        with DefaultAzureCredential() as credential:
            token = credential.get_token(_SCOPE)
    except (CredentialUnavailableError, ClientAuthenticationError) as error:
        raise OptionError(
            f"no credentials for Azure were found ({type(error).__name__}): give the process a "
            "managed identity, run az login, or set AZURE_CLIENT_ID, AZURE_TENANT_ID and "
            "AZURE_CLIENT_SECRET, AZURE_STORAGE_CONNECTION_STRING or AZURE_STORAGE_SAS_TOKEN"
        ) from None
    except AzureError as error:
        raise Transient(
            f"the service of Azure's tokens: {type(error).__name__}", unreachable=True
        ) from None
    return token.token, float(token.expires_on)


TOKEN = Token(_new_token)
