"""Names that tell nothing about a person: keyed digests, which only the holder of the key can make again."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import UserError
from .disk import disk_errors, write_private
from .guards import require_regular

DIGITS = 12
SHORTEST = 32
"""Characters that a key must have."""


@dataclass(frozen=True)
class Pseudonyms:
    """Digests of names under a secret.

    A digest without a secret would not do: who tries all numbers of patients would find the one behind it.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def read(cls, key: Path) -> Pseudonyms:
        """Return the digests under the secret in a file, which is made, for its owner alone, if it is not there.

        Raises UserError for a file that holds too short a secret.
        """
        require_regular(key)
        if not key.exists():
            with disk_errors(key):
                key.parent.mkdir(parents=True, exist_ok=True)
                write_private(key, f"{secrets.token_hex(32)}\n".encode())
        secret = key.read_bytes().strip()
        if len(secret) < SHORTEST:
            problem = f"has fewer than {SHORTEST} characters, too few for a secret"
            raise UserError(key, problem, "name a file that is not there: it will be made")
        return cls(secret)

    def __call__(self, kind: str, name: str) -> str:
        """Return the digest of a name of some kind, 12 hex digits."""
        return hmac.new(self.secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:DIGITS]
