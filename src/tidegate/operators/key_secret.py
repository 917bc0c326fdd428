"""The secret of the key identities in a state, which is stored with it."""

from __future__ import annotations

import secrets

from tidegate.errors import CorruptStateError, SpecMismatchError
from tidegate.kernel.keys import FIXED, SECRET_BYTES, KeyHasher
from tidegate.state.store import Store

_NAME = "key_secret"


def new_hasher() -> KeyHasher:
    """A hasher with a secret of its own."""
    return KeyHasher(secrets.token_bytes(SECRET_BYTES))


def key_hasher(store: Store, given: KeyHasher | None = None) -> KeyHasher:
    """The hasher of a state: the stored one, or the given or a new one for new state.

    A store without a file has no secret, so that a run in memory is reproducible.
    """
    stored = _stored(store)
    if stored is not None:
        if given is not None and given != stored:
            raise SpecMismatchError(
                "the keys of this state are hashed with another secret than that of the query."
                " Hint: the checkpoint mixes the files of two queries; restore it from one copy"
            )
        return stored
    hasher = given if given is not None else new_hasher() if store.is_durable else FIXED
    store.put_json(_NAME, hasher.secret.hex())
    return hasher


def _stored(store: Store) -> KeyHasher | None:
    document = store.get_json(_NAME)
    if document is None:
        return None
    try:
        secret = bytes.fromhex(document)
    except (TypeError, ValueError) as error:
        raise _damaged() from error
    if len(secret) != SECRET_BYTES:
        raise _damaged()
    return KeyHasher(secret)


def _damaged() -> CorruptStateError:
    return CorruptStateError(
        f"the document `{_NAME}` of the state is damaged. Hint: restore the state from a copy"
    )
