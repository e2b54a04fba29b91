"""Recognize secret settings, and mask them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

    from detcore.contract.values import JSONValue


MASK = "********"

_NAMES = ("access_key", "secret_key", "connection_string", "credential", "registry_auth")
_MAX_NAME = 20
_SIMILAR = 0.8  # two of ten letters differ
_PARTS = re.compile(
    r"secret|passw(or)?d|passphrase|credential|connection_?string|registry_?auth|authorization"
    r"|(access|account|api|encryption|private|signing|ssh)_?key|(amz|goog)_signature"
    r"|(access|api|auth|bearer|client|github|hf|hub|identity|jwt|oauth|refresh|registry|sas|security"
    r"|session|slack|wandb)_?token"
    # Excludes tokens of a vocabulary: pad_token, num_tokens.
    r"|(?:^|\.)(token|pass|pwd|bearer|jwt)$"
    r"|_(pwd|pat|bearer|jwt)$|(admin|db|det|ftp|mysql|pg|proxy|root|smtp)_?pass$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+(?=@)|(?<=[?&]sig=)[^&\s'\"]+", re.IGNORECASE)
# A name is matched from its first character only: starting at every other character as well would
# take quadratic time on a long line without an assignment.
_ASSIGNMENT = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?\s*[:=]")
_PAIR = re.compile(r"(?<![\w.-])([\w.-]+=)([^&;\s'\"]+)")


# Keys of AWS, GitHub, GitLab, Hugging Face, OpenAI and Slack, and private keys.
_KNOWN_FORMS = re.compile(
    r"AKIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]+-----END [A-Z ]*PRIVATE KEY-----"
)
_MIN_SECRET_LENGTH = 6
_FEW_SECRETS = 50
_PLAIN_STARS = re.compile(rf"(?m)([:-][ \t]+){re.escape(MASK)}(?=[ \t]*$)")
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*")
_ANCHOR = re.compile(r"&\S+\s+")
_MAX_YAML = 1 << 20
_IS_EXPERIMENT_FILE = re.compile(r"^[\"']?(entrypoint|searcher)[\"']?\s*:", re.MULTILINE)


def is_secret_key(name: str) -> bool:
    """Return whether the value of a setting with this name must be masked.

    Misspelled names also count, because a message about the misspelling shows the line.
    """
    lower = name.lower().replace("-", "_").replace(" ", "_")
    if _PARTS.search(lower):
        return True
    is_similar = len(lower) <= _MAX_NAME and difflib.get_close_matches(lower, _NAMES, 1, _SIMILAR)
    return bool(is_similar)


def mask_text(text: str) -> str:
    """Return `text` with recognizable secrets masked.

    These are passwords and signatures in URLs, keys of a known form, and ``name=value`` with the
    name of a secret, as in URL queries and connection strings.
    """
    for form in (_IN_URL, _KNOWN_FORMS):
        text = form.sub(lambda found: "*" * len(found[0]), text)
    return _PAIR.sub(
        lambda found: found[1] + "*" * len(found[2]) if is_secret_key(found[1][:-1]) else found[0],
        text,
    )


def mask_config(config: JSONValue) -> JSONValue:
    """Return a copy of a configuration with `MASK` in place of every secret.

    If the value of a secret also occurs elsewhere, such as through an anchor, it is masked there
    too.

    Args:
        config: The configuration or a part of it, from `ExperimentConfig.model_dump`.
    """
    masked = _mask_values(config)
    hidden = _list_hidden_strings(config, masked)
    return _mask_values(config, secrets={*hidden}) if hidden else masked


def _mask_values(
    value: JSONValue, *, secret: bool = False, secrets: Set[str] = frozenset()
) -> JSONValue:
    if isinstance(value, Mapping):
        return {
            k: _mask_values(v, secret=secret or is_secret_key(k), secrets=secrets)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [_mask_values(item, secret=secret, secrets=secrets) for item in value]
    if secret and value not in (None, ""):
        return MASK
    if isinstance(value, str):
        name, equals, _ = value.partition("=")
        if equals and re.fullmatch(r"\w+", name) and is_secret_key(name):
            return f"{name}={MASK}"
        masked_text = mask_text(value)
        return MASK if masked_text == value and value in secrets else masked_text
    return value


def find_hidden(
    value: Any, hidden: Any, place: Sequence[str | int] = ()
) -> Iterator[tuple[list[str | int], Any]]:
    """Yield each value that `mask_config` masked, with its path.

    Args:
        value: The configuration or a part of it.
        hidden: The masked copy of `value`.
        place: Keys and indices that lead to `value`.
    """
    if isinstance(value, Mapping) and isinstance(hidden, Mapping):
        for key in value:
            yield from find_hidden(value[key], hidden[key], (*place, key))
    elif isinstance(value, list | tuple) and isinstance(hidden, list | tuple):
        for index, item in enumerate(value):
            yield from find_hidden(item, hidden[index], (*place, index))
    elif value != hidden:
        yield list(place), value


def _list_hidden_strings(value: object, hidden: object) -> list[str]:
    """Return the strings from `find_hidden` that are long enough to be recognized."""
    # Shorter values, such as "abc", occur in any text by chance.
    return [
        text
        for _, text in find_hidden(value, hidden)
        if isinstance(text, str) and len(text) >= _MIN_SECRET_LENGTH and text != MASK
    ]


def secret_values(config: Mapping[str, Any], hidden: object = None) -> list[str]:
    """Return the secrets of a configuration that are long enough to be recognized elsewhere.

    Args:
        config: The configuration, with its secrets.
        hidden: Its masked copy; None: that of `mask_config`.
    """
    return _list_hidden_strings(config, mask_config(dict(config)) if hidden is None else hidden)


def mask_code(text: str, secrets: Iterable[str]) -> str:
    """Return a file of the user's code folder without the secrets of an experiment.

    In an experiment file, which may contain other secrets than the current ones, the values of
    secret names are masked as well. YAML stays valid YAML.

    Args:
        text: Content of the file.
        secrets: The `secret_values` of the experiment's configuration.
    """
    if len({*_IS_EXPERIMENT_FILE.findall(text)}) == 2:
        text = _mask_yaml(text) or "\n".join(hide_lines(text.split("\n")))
    masked = _replace_all(text, sorted({*secrets}, key=len, reverse=True))
    # A plain star begins an alias in YAML: the copy must stay readable.
    return masked if masked == text else _PLAIN_STARS.sub(rf'\1"{MASK}"', masked)


def _replace_all(text: str, secrets: Sequence[str]) -> str:
    """Return `text` with `MASK` in place of secrets, the longest of which come first."""
    if len(secrets) < _FEW_SECRETS:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return text
    # Replacing secrets one after the other takes quadratic time in a file with all secrets.
    secret_set, lengths = {*secrets}, dict[str, dict[int, None]]()
    for secret in secrets:
        lengths.setdefault(secret[:_MIN_SECRET_LENGTH], {})[len(secret)] = None
    parts, start, position = [], 0, 0
    while position < len(text):
        for length in lengths.get(text[position : position + _MIN_SECRET_LENGTH], ()):
            if text[position : position + length] in secret_set:
                parts += [text[start:position], MASK]
                start = position = position + length
                break
        else:
            position += 1
    return "".join([*parts, text[start:]])


def _mask_yaml(text: str) -> str | None:
    """Return YAML with the values of secret names masked; None if it cannot be parsed."""
    if len(text) > _MAX_YAML:
        return None
    import yaml

    parts, end = [], 0
    try:
        nodes = _find_secret_nodes(yaml.compose(text, yaml.SafeLoader), set())
        for start, stop in sorted({(n.start_mark.index, n.end_mark.index) for n in nodes}):
            secret = text[start:stop].rstrip()
            if start < end or not secret:  # a part of another secret
                continue
            # A list may begin in the column of its name, but a string may not.
            stars = f'  "{MASK}"' if secret.startswith("- ") else f'"{MASK}"'
            anchor = _ANCHOR.match(secret)  # other values may refer to it
            parts += [text[end:start], anchor[0] if anchor else "", stars]
            end = start + len(secret)
        text = "".join([*parts, text[end:]])
        text = _COMMENT.sub(lambda comment: hide_lines([comment.group()])[0], text)
        yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    return text


def _find_secret_nodes(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.Node]:
    import yaml

    if id(node) in seen:  # an alias: following all aliases may take exponential time
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _find_secret_nodes(item, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and is_secret_key(key.value):
                yield value
            else:
                yield from _find_secret_nodes(value, seen)


def hide_lines(lines: Sequence[str], spans: Iterable[tuple[int, int, int, int]] = ()) -> list[str]:
    """Return lines of a source with secrets masked, each as long as before.

    Works without parsing, and therefore also on invalid text: it masks everything from the value of
    a secret name to the end of the line, and all following lines with a deeper indentation.

    Args:
        lines: The lines.
        spans: Further secrets: line, column, end line and end column, from 0, end exclusive.
    """
    lines = list(lines)
    for first, column, last, end_column in spans:
        for number in range(first, min(last + 1, len(lines))):
            start = column if number == first else 0
            end = end_column if number == last else len(lines[number])
            lines[number] = _replace_with_stars(lines[number], start, end)
    return _hide_by_name(lines)


def _hide_by_name(lines: Sequence[str]) -> list[str]:
    hidden: list[str] = []
    secret_indent: int | None = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_item = indent == secret_indent and line.lstrip().startswith("- ")
        below = secret_indent is not None and (not line.strip() or indent > secret_indent)
        if below or is_item:
            hidden.append(_replace_with_stars(line, indent, len(line)))
            continue
        secret_indent = None
        start = _find_secret_start(_ASSIGNMENT.finditer(line))
        if start is None:
            hidden.append(mask_text(line))
            continue
        secret_indent = indent
        hidden.append(_replace_with_stars(line, start, len(line)))
    return hidden


def _replace_with_stars(line: str, start: int, end: int) -> str:
    return line[:start] + re.sub(r"\S", "*", line[start:end]) + line[end:]


def _find_secret_start(assignments: Iterable[re.Match[str]]) -> int | None:
    for assignment in assignments:
        if is_secret_key(assignment.group(1).split(".")[-1].split("__")[-1]):
            return assignment.end()
    return None
