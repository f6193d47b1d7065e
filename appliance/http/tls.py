"""Owns TLS from files: a certificate and its key, checked before anything is served with them.

Must not know sockets.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from appliance.errors import BadSetting

CERTIFICATE, KEY = "server.tls_certificate", "server.tls_key"
SOON_S = 14 * 86400.0

_log = logging.getLogger(__name__)


def server_context(certificate: str, key: str) -> ssl.SSLContext | None:
    """The context of a server with the certificate (with its chain) and key in these PEM files; None for two "".

    Raises:
        BadSetting: one is not given, not there, cannot be read, is not what it should be, does not fit the other, or
            has expired.
    """
    if not certificate and not key:
        return None
    for name, given, other in ((CERTIFICATE, certificate, KEY), (KEY, key, CERTIFICATE)):
        if not given:
            raise BadSetting(f"{other} is set and {name} is not.", remedy="TLS needs both.", param=name)
    chain, private = _readable(CERTIFICATE, certificate), _readable(KEY, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 and newer
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(chain, private, password=_no_password)
    except ssl.SSLError as error:
        raise _unusable(error, chain, private) from error
    _check_dates(context, chain)
    return context


def _readable(name: str, given: str) -> str:
    path = Path(given).expanduser()
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        raise BadSetting(f"{name} names {path}, which cannot be read: {error.strerror}.", param=name) from error


def _no_password() -> str:
    # Otherwise OpenSSL asks on the terminal, and a service waits for ever.
    raise BadSetting(
        "The key of server.tls_key is encrypted.",
        remedy="Store it decrypted, readable by this service's user alone: openssl pkey -in KEY -out NEW",
        param=KEY,
    )


def _unusable(error: ssl.SSLError, certificate: str, key: str) -> BadSetting:
    if error.reason == "KEY_VALUES_MISMATCH":
        return BadSetting(
            f"The key {key} does not belong to the certificate {certificate}.",
            remedy="In the file, the service's own certificate comes first, then those that signed it.",
            param=KEY,
        )
    if error.reason and error.reason.endswith(("_KEY_TOO_SMALL", "_MD_TOO_WEAK")):
        return BadSetting(f"The certificate {certificate} is too weak ({error.reason}).", param=CERTIFICATE)
    said = f" ({error.reason})" if error.reason else ""
    return BadSetting(
        f"{certificate} and {key} are not a certificate and its key{said}.",
        remedy="Both must be PEM files: -----BEGIN CERTIFICATE----- and -----BEGIN PRIVATE KEY-----.",
        param=CERTIFICATE,
    )


def _check_dates(context: ssl.SSLContext, certificate: str) -> None:
    """Refuse what has expired, as every client would; of what begins later, the clock may be at fault."""
    shown = _seen_by_a_client(context, certificate)
    if shown is None:
        return
    now = time.time()
    begins, ends = (ssl.cert_time_to_seconds(str(shown[name])) for name in ("notBefore", "notAfter"))
    if now > ends:
        raise BadSetting(
            f"The certificate {certificate} expired at {shown['notAfter']}.",
            remedy="Renew it, or set the clock of this machine.",
            param=CERTIFICATE,
        )
    if now < begins:
        _log.warning("the certificate %s is good from %s on: is the clock right?", certificate, shown["notBefore"])
    elif ends - now < SOON_S:
        _log.warning("the certificate %s expires at %s", certificate, shown["notAfter"])


def _seen_by_a_client(context: ssl.SSLContext, certificate: str) -> dict[str, object] | None:
    """The server's own certificate, parsed: the standard library does that for a peer's alone, and only for one that
    it trusts. So a handshake in memory, with that file as what is trusted, whatever the date."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):  # TLS 1.3 is done after two turns
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return None  # a chain that no client could check either; dates are not what is wrong with it
    found = ends[0].getpeercert()
    return dict(found) if found else None


_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which `ssl` has no name for
