"""Manifests as a bug or an attacker would write them."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def resealed(document: Any) -> bytes:
    """Return a document with a right sha256."""
    body = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"
