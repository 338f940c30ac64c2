"""What must never be shown: values of secret keys, and credentials inside URLs."""

import re
from collections.abc import Mapping
from typing import Any, Final

MASK: Final = "***"

# `token` counts only as the last word, so that max_num_batched_tokens, tokenizer_mode and
# long_prefill_token_threshold stay readable.
_SECRET_KEY: Final = re.compile(
    r"hf_token|api_?keys?|password|passwd|secret|authorization|credential|token$"
)
_URL_USER: Final = re.compile(r"(?<=://)[^/\s?#]*@")
_URL_QUERY: Final = re.compile(
    r"([?&][\w-]*(?:token|api[-_]?key|password|secret)=)[^&\s#]+", re.IGNORECASE
)


def is_secret(key: str) -> bool:
    """Whether the value of this key (the last part of a dotted one) is a secret."""
    return _SECRET_KEY.search(key.lower().replace("-", "_")) is not None


def masked(value: Any, key: str = "") -> Any:
    """A copy of `value`, a tree of mappings, lists and scalars, that is safe to show.

    None stays None, so that it is visible whether a secret is set at all.
    """
    if is_secret(key):
        return None if value is None else MASK
    if isinstance(value, Mapping):
        return {name: masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    if isinstance(value, str):
        return _URL_QUERY.sub(rf"\1{MASK}", _URL_USER.sub(f"{MASK}@", value))
    return value
