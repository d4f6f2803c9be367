"""What is kept on disk from one server to the next: the replies to put back, the domains."""

from __future__ import annotations

import hashlib
import json
import logging

from ratoon.config import Settings
from ratoon.disk.behind import BehindConfig, WriteBehind
from ratoon.disk.fingerprint import Fingerprint
from ratoon.reuse.replies import ReplyMemory
from ratoon.reuse.saved import SavedReplies
from ratoon.router.box import KeyBox

log = logging.getLogger("ratoon.kept")

CATALOGUE_BYTES = 256 << 20
SECRET_BYTES = 1 << 20


def open_records(
    settings: Settings, identity: Fingerprint | None, template: str
) -> WriteBehind | None:
    """Where this server's replies are kept on disk; ``None`` if they are not."""
    if identity is None or not settings.replay:
        return None
    owner = _owner(identity.model, template, settings.tool_dialect)
    return WriteBehind(settings.states_dir, owner, BehindConfig(settings.replay_bytes))


def open_catalogues(settings: Settings, identity: Fingerprint | None) -> WriteBehind | None:
    """Where registered domains are kept on disk; ``None`` if they are not."""
    if identity is None:
        return None
    owner = hashlib.blake2b(identity.model.encode(), digest_size=16, person=b"ratoon domains")
    return WriteBehind(settings.states_dir, owner.hexdigest(), BehindConfig(CATALOGUE_BYTES))


def open_secrets(
    settings: Settings, identity: Fingerprint | None
) -> tuple[KeyBox, WriteBehind] | None:
    """Where the keys of language models are kept on disk, locked; ``None`` if they are not."""
    if identity is None:
        return None
    try:
        box = KeyBox.open(settings.states_dir)
    except (OSError, ValueError) as error:
        log.warning("no keys are kept on disk: %s", type(error).__name__)
        return None
    owner = hashlib.blake2b(digest_size=16, person=b"ratoon secrets").hexdigest()
    return box, WriteBehind(settings.states_dir, owner, BehindConfig(SECRET_BYTES))


def open_memory(settings: Settings, records: WriteBehind | None) -> ReplyMemory | None:
    """The replies of earlier servers, and room for more; ``None`` if none are put back."""
    if not settings.replay:
        return None
    if records is None:
        return ReplyMemory(settings.replay_bytes)
    saved = SavedReplies(records)
    memory = ReplyMemory(settings.replay_bytes, saved)
    memory.keep_reasoning(settings.think)
    memory.restore(saved.replies())
    return memory


def _owner(model: str, template: str, dialect: str) -> str:
    """Equal where tokens mean the same, and replies would be read and shown the same."""
    facts = json.dumps([model, template, dialect])
    return hashlib.blake2b(facts.encode(), digest_size=16, person=b"ratoon replies").hexdigest()
