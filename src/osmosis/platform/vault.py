"""Secret values at rest: AES-256-GCM under a master key that is in no database or backup, bound to workspace, scope,
owner, name and version. Derived keys sign object URLs and cookies."""

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from osmosis.base.files import create_once
from osmosis.errors import InternalError, ValidationError

KEY_BYTES = 32
NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Sealed:
    key_id: str
    nonce: bytes
    ciphertext: bytes


class Vault:
    def __init__(self, master_key: bytes) -> None:
        if len(master_key) != KEY_BYTES:
            message = f"the master key has {len(master_key)} bytes instead of {KEY_BYTES}"
            raise ValidationError(message, hint="set OSMOSIS_MASTER_KEY to the base64 of 32 random bytes")
        self._cipher = AESGCM(_derive(master_key, b"secrets"))
        self._sign_key = _derive(master_key, b"signatures")
        self.key_id = hashlib.sha256(master_key).hexdigest()[:16]

    @classmethod
    def open(cls, data_dir: Path, key: str = "") -> "Vault":
        if key:
            return cls(_decode(key, "OSMOSIS_MASTER_KEY"))
        path = data_dir / "master.key"
        data_dir.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            create_once(path, base64.b64encode(AESGCM.generate_key(256)) + b"\n", mode=0o600)
        return cls(_decode(path.read_text(), str(path)))

    def seal(self, value: str, about: str) -> Sealed:
        nonce = os.urandom(NONCE_BYTES)
        return Sealed(self.key_id, nonce, self._cipher.encrypt(nonce, value.encode(), about.encode()))

    def unseal(self, sealed: Sealed, about: str) -> str:
        if sealed.key_id != self.key_id:
            message = f"a secret was encrypted with master key {sealed.key_id}, this platform has {self.key_id}"
            hint = "start the platform with its original master key, or set the secret again"
            raise InternalError(message, hint=hint)
        try:
            return self._cipher.decrypt(sealed.nonce, sealed.ciphertext, about.encode()).decode()
        except InvalidTag:
            raise InternalError("a stored secret was altered or moved", hint="set the secret again") from None

    def sign(self, text: str) -> str:
        return hmac.new(self._sign_key, text.encode(), hashlib.sha256).hexdigest()

    def is_signed(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(text).encode(), signature.encode(errors="replace"))


def _derive(master_key: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=b"osmosis platform " + purpose).derive(master_key)


def _decode(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ValidationError(f"{where} is not base64", hint="it must be the base64 of 32 random bytes") from None
