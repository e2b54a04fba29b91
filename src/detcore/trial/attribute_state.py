"""Save and restore the attributes of a user's object, such as a callback, that training changes."""

from __future__ import annotations

import collections
import io
import logging
import random
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from detcore.contract.errors import InvalidCheckpointError
from detcore.trial.live_values import (
    CODE_TYPES,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ITEMS,
    PLAIN_TYPES,
    AttributeCodec,
    is_plain_object,
    read_generator,
    read_values,
)

_logger = logging.getLogger("detcore.trial")

# Marks of types that JSON lacks. A mark is the only key of a dictionary.
_TUPLE, _SET, _FROZENSET, _DEQUE, _DICT = "$tuple", "$set", "$frozenset", "$deque", "$dict"
_BYTES, _PATH, _COUNTER, _ORDERED = "$bytes", "$path", "$counter", "$ordered"
# States with these marks are restored into an object that the user's code has created.
_OBJECT, _STATE, _GENERATOR, _DEFAULTDICT = "$object", "$state", "$generator", "$defaultdict"
_IN_PLACE = frozenset({_OBJECT, _STATE, _GENERATOR, _DEFAULTDICT})
_OPAQUE = "$opaque"
_MISSING = object()


class AttributeTracker:
    """Saves the attributes of an object that have changed since the tracker was created.

    Create the tracker before training starts. Attributes that training does not change, such as
    settings, are not saved, so that a changed setting takes effect when a run is resumed.

    Example:
        >>> class EarlyStopping:
        ...     def __init__(self, patience):
        ...         self.patience = patience
        ...         self.best = None
        >>> callback = EarlyStopping(patience=3)
        >>> tracker = AttributeTracker(callback)
        >>> callback.best = 0.25
        >>> tracker.capture()
        {'best': 0.25}

    Args:
        target: The object.
        prefix: Prefix of attribute names in the warning about lost changes, such as ``"trial."``.
            None disables the warning.
        names: Names of the only attributes to save. None: all.
        ignored: Names of attributes that belong to the framework, such as ``"model"``.
        ignored_objects: Objects that the caller saves separately, such as models and optimizers.
        codec: Reads a framework's tensors and stateful objects.
    """

    def __init__(
        self,
        target: object,
        *,
        prefix: str | None = None,
        names: Collection[str] | None = None,
        ignored: Collection[str] = (),
        ignored_objects: Iterable[object] = (),
        codec: AttributeCodec | None = None,
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._reports_unsaved = prefix is not None
        self._chosen = None if names is None else frozenset(names)
        self._ignored = frozenset(ignored)
        self._ignored_objects = _by_id(ignored_objects)
        self._codec = codec or AttributeCodec()
        self._digests = {
            name: self._create_encoder(value).compute_digest()
            for name, value in self._list_attributes()
        }
        self.note_objects()
        self._warn_of_iterators()

    def note_objects(self, ignored_objects: Iterable[object] = ()) -> None:
        """Record the types of the attributes, so that states can be restored into them.

        Call it again after the hook that the framework calls when training starts, which may create
        such objects, and before `restore`.

        Args:
            ignored_objects: Additional objects that the caller saves separately.
        """
        self._ignored_objects |= _by_id(ignored_objects)
        self._types = {name: type(value) for name, value in self._list_attributes()}

    def capture(self, *, include_unchanged: bool = False) -> dict[str, Any]:
        """Return the changed attributes, and all random generators, by name.

        The first call logs a warning about changed attributes that cannot be saved.

        Args:
            include_unchanged: Whether to return the other attributes, too, without a warning.

        Returns:
            None, bool, int, float, str, NumPy arrays and scalars, tensors, and lists and
            dictionaries of these. Arrays are copies; tensors are those of the attributes.
        """
        if self._prefix is not None and not include_unchanged:
            self._warn_of_unsaved(self._prefix)
            self._prefix = None
        values = {}
        for name, value in self._list_attributes():
            encoded = self._create_encoder(value)
            if self._is_restorable(name, value, encoded) and (
                include_unchanged
                or encoded.has_generator
                or encoded.compute_digest() != self._digests.get(name)
            ):
                values[name] = _copy_arrays(encoded.value)
        return values

    def list_changed(self) -> list[str]:
        """Return the names of the attributes that have changed and that `capture` cannot save."""
        return [
            name
            for name, value in self._list_attributes()
            if not self._is_restorable(name, value, encoded := self._create_encoder(value))
            and encoded.compute_digest() != self._digests.get(name)
        ]

    def read_live(self, owner: str) -> dict[str, Any]:
        """Return the attributes that have changed, for the comparison after a resume.

        The values are read without the code that saves them.

        Args:
            owner: Prefix of the names, such as ``"trial."``.

        Returns:
            Plain values and arrays by path; None for an attribute that `capture` cannot save.
        """
        values: dict[str, Any] = {}
        ignored = self._ignored_objects.values()
        for name, value in self._list_attributes():
            encoded = self._create_encoder(value)
            if encoded.compute_digest() == self._digests.get(name):
                continue
            path = f"{owner}{name}"
            if self._is_restorable(name, value, encoded):
                values |= read_values(value, path, codec=self._codec, ignored_objects=ignored)
            elif self._reports_unsaved:
                values[path] = None
        return values

    def _warn_of_iterators(self) -> None:
        """Warn about iterators, whose position is unknown, before training."""
        names = [
            f"{self._prefix}{name}"
            for name, value in self._list_attributes()
            if isinstance(value, Iterator)
            and not isinstance(value, io.IOBase)
            and self._codec.get_state(value) is None
        ]
        if names and self._prefix is not None:
            _logger.warning(
                "a checkpoint cannot hold the position of the iterator %s, so a resumed run starts "
                "it from its beginning. Compute the values from the number of the batch, or use an "
                "object with state_dict and load_state_dict",
                ", ".join(names),
            )

    def _warn_of_unsaved(self, prefix: str) -> None:
        if names := self.list_changed():
            _logger.warning(
                "training has changed %s, which a checkpoint cannot hold: a resumed run starts "
                "with the initial value. Use numbers, strings, arrays, tensors or containers of "
                "these, or create the object before training starts, with methods that save and "
                "load its state",
                ", ".join(f"{prefix}{name}" for name in names),
            )

    def restore(self, values: Mapping[str, Any]) -> None:
        """Set attributes to values from `capture`, changing containers and arrays in place.

        Raises:
            InvalidCheckpointError: If a value does not fit the present value of the attribute.
        """
        decoder = _Decoder(self._codec)
        attributes = self._get_attributes()
        for name, saved_value in values.items():
            current = attributes.get(name, _MISSING)
            try:
                restored = decoder.decode(saved_value, current)
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                kind = "missing" if current is _MISSING else f"a {type(current).__name__}"
                raise InvalidCheckpointError(
                    f"the attribute {name} of {type(self._target).__name__} cannot be restored: "
                    f"{error}.\nBefore training, the attribute is {kind}.\n"
                    "Create the same object in __init__ as when the checkpoint was saved."
                ) from error
            if restored is not current:
                self._set_attribute(name, restored)

    def _get_attributes(self) -> Mapping[str, Any]:
        return getattr(self._target, "__dict__", {})

    def _set_attribute(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def _list_attributes(self) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in list(self._get_attributes().items())
            if name not in self._ignored
            and id(value) not in self._ignored_objects
            and (self._chosen is None or name in self._chosen)
        ]

    def _create_encoder(self, value: Any) -> _Encoder:
        return _Encoder(value, self._codec, self._ignored_objects, self._is_searched)

    def _is_searched(self, value: object) -> bool:
        """Whether to include the attributes and the state of an object in the target's state."""
        return True

    def _is_restorable(self, name: str, value: Any, encoded: _Encoder) -> bool:
        return encoded.is_plain and (
            not encoded.is_in_place or type(value) is self._types.get(name)
        )


def _by_id(objects: Iterable[object]) -> dict[int, object]:
    """Return objects by their identity, except None, which is shared."""
    return {id(item): item for item in objects if item is not None}


def _copy_arrays(value: Any) -> Any:
    """Return an encoded value with copies of its arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copy_arrays(item) for item in value]
    if isinstance(value, dict):
        return {key: _copy_arrays(item) for key, item in value.items()}
    return value


class _Encoder:
    """Encodes one attribute for a checkpoint.

    Attributes:
        value: The encoded value. If `is_plain` is false, it only identifies the value within this
            process.
        is_plain: Whether the value can be restored from the encoded value.
        is_in_place: Whether restoring requires an object that the user's code has created.
        has_generator: Whether the value contains a random generator.
    """

    def __init__(
        self,
        value: Any,
        codec: AttributeCodec,
        ignored: Mapping[int, object],
        is_searched: Callable[[object], bool],
    ) -> None:
        self._codec = codec
        self._ignored = ignored
        self._is_searched = is_searched
        self.is_plain = True
        self.is_in_place = False
        self.has_generator = False
        self.value = self._encode(value, 0)

    def compute_digest(self) -> bytes:
        """Return a digest of the encoded value and its types."""
        state = xxhash.xxh3_128()
        _add_to_digest(self.value, state, self._codec)
        digest: bytes = state.digest()
        return digest

    def _encode(self, value: Any, depth: int) -> Any:
        if type(value) in PLAIN_TYPES:
            return value
        if id(value) in self._ignored:
            return self._mark_opaque("ignored")
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
            array: Any = value
        else:
            array = self._codec.read_tensor(value)
        if array is not None:
            is_data = depth == 0 and array.nbytes > MAX_BYTES
            return self._mark_opaque(id(value)) if is_data else value
        if depth > MAX_DEPTH or isinstance(value, CODE_TYPES):
            return self._mark_opaque(id(value))
        if type(value) in _CONTAINERS:
            return self._encode_container(value, depth + 1)
        if type(value) in (bytes, bytearray):
            return {_BYTES: [value.hex(), type(value) is bytearray]}
        if isinstance(value, PurePath):
            return {_PATH: str(value)}
        return self._encode_object(value, depth + 1)

    def _encode_container(self, value: Any, depth: int) -> Any:
        # Copies are iterated, because another thread may change the container meanwhile.
        if len(value) > MAX_ITEMS:
            return self._mark_opaque([id(value), len(value)])
        if isinstance(value, dict):
            return self._encode_dict(value, depth)
        if isinstance(value, set | frozenset):
            # Sorted, because the order of a set differs between processes.
            items = sorted((self._encode(item, depth) for item in list(value)), key=repr)
            return {_CONTAINERS[type(value)]: items}
        items = [self._encode(item, depth) for item in list(value)]
        if type(value) is list:
            return items
        if isinstance(value, collections.deque):
            return {_DEQUE: [items, value.maxlen]}
        return {_TUPLE: items}

    def _encode_dict(self, value: Mapping[Any, Any], depth: int) -> Any:
        pairs = [(key, self._encode(item, depth)) for key, item in list(value.items())]
        mark = _CONTAINERS[type(value)]
        if mark == _DICT and all(type(k) is str and not k.startswith("$") for k, _ in pairs):
            return dict(pairs)
        self.is_in_place |= mark == _DEFAULTDICT
        return {mark: [[self._encode(key, depth), item] for key, item in pairs]}

    def _encode_object(self, value: Any, depth: int) -> Any:
        state = read_generator(value)
        if state is not None:
            self.has_generator = self.is_in_place = True
            return {_GENERATOR: self._encode(state, depth)}
        if not self._is_searched(value):
            return self._mark_opaque(id(value))
        state = self._codec.get_state(value)
        if state is not None:
            self.is_in_place = True
            return {_STATE: self._encode(state, depth)}
        if is_plain_object(value):
            self.is_in_place = True
            return {_OBJECT: self._encode_dict(vars(value), depth)}
        return self._mark_opaque(id(value))

    def _mark_opaque(self, identity: Any) -> Any:
        self.is_plain = False
        return {_OPAQUE: identity}


_CONTAINERS: Mapping[type, str] = {
    list: "", tuple: _TUPLE, set: _SET, frozenset: _FROZENSET, collections.deque: _DEQUE,
    dict: _DICT, collections.OrderedDict: _ORDERED, collections.Counter: _COUNTER,
    collections.defaultdict: _DEFAULTDICT,
}  # fmt: skip


def _set_generator(value: Any, state: Any) -> None:
    if type(value) is random.Random:
        version, words, gauss = state
        value.setstate((version, tuple(words.tolist()), gauss))
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, np.random.BitGenerator):
        value.state = state
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    else:
        raise TypeError("the checkpoint holds the state of a random generator")


class _Decoder:
    """Restores values of one object; changes each container in place at most once."""

    def __init__(self, codec: AttributeCodec) -> None:
        self._codec = codec
        self._changed: dict[int, object] = {}

    def decode(self, saved: Any, current: Any) -> Any:
        """Return a saved value, restored into the current value if possible."""
        if isinstance(saved, np.ndarray):
            return self._decode_array(saved, current)
        if isinstance(saved, np.generic):
            return saved
        if isinstance(saved, list):
            return self._fill_list(current, self._decode_items(saved, current))
        if isinstance(saved, dict):
            if len(saved) == 1 and (mark := next(iter(saved))).startswith("$"):
                return self._decode_marked(mark, saved[mark], current)
            return self._decode_dict([[key, item] for key, item in saved.items()], current, dict)
        if self._codec.read_tensor(saved) is not None:
            return self._codec.assign_tensor(current, saved)
        return saved

    def _decode_marked(self, mark: str, content: Any, current: Any) -> Any:
        if mark in _DICT_KINDS:
            return self._decode_dict(content, current, _DICT_KINDS[mark])
        if mark in _IN_PLACE:
            self._fill_object(mark, content, current)
            return current
        if mark == _TUPLE:
            return tuple(self._decode_items(content, current))
        if mark in (_SET, _FROZENSET):
            kind: Callable[..., Any] = set if mark == _SET else frozenset
            return kind(self.decode(item, _MISSING) for item in content)
        if mark == _DEQUE:
            return collections.deque(self._decode_items(content[0], current), content[1])
        if mark == _BYTES:
            return (bytearray if content[1] else bytes).fromhex(content[0])
        if mark == _PATH:
            return (type(current) if isinstance(current, PurePath) else PurePath)(content)
        raise ValueError(f"unknown mark {mark}")

    def _fill_object(self, mark: str, content: Any, current: Any) -> None:
        if mark == _GENERATOR:
            _set_generator(current, self.decode(content, _MISSING))
        elif mark == _STATE:
            self._codec.set_state(current, self.decode(content, _MISSING))
        elif mark == _DEFAULTDICT and isinstance(current, collections.defaultdict):
            self._decode_dict(content, current, collections.defaultdict)
        elif mark == _OBJECT and is_plain_object(current):
            pairs = content.items() if isinstance(content, dict) else ()
            values = {key: self.decode(item, vars(current).get(key)) for key, item in pairs}
            vars(current).update(values)
        else:
            raise TypeError("the checkpoint holds the attributes of an object")

    def _decode_array(self, saved: npt.NDArray[Any], current: Any) -> Any:
        if (
            isinstance(current, np.ndarray)
            and (current.shape, current.dtype) == (saved.shape, saved.dtype)
            and current.flags.writeable
            and self._is_unchanged(current)
        ):
            np.copyto(current, saved)
            return current
        return np.array(saved)

    def _decode_dict(self, pairs: Any, current: Any, kind: type[dict[Any, Any]]) -> Any:
        values = current if isinstance(current, dict) else {}
        items: dict[Any, Any] = {}
        for saved_key, item in pairs:
            key = self.decode(saved_key, _MISSING)
            items[key] = self.decode(item, values.get(key, _MISSING))
        if type(current) is kind and self._is_unchanged(current):
            current.clear()
            current.update(items)
            return current
        result: dict[Any, Any] = kind()
        result.update(items)
        return result

    def _decode_items(self, saved: Any, current: Any) -> list[Any]:
        items = list(current) if isinstance(current, list | tuple | collections.deque) else []
        items += [_MISSING] * (len(saved) - len(items))
        return [self.decode(item, old) for item, old in zip(saved, items, strict=False)]

    def _fill_list(self, current: Any, items: list[Any]) -> list[Any]:
        if type(current) is list and self._is_unchanged(current):
            current[:] = items
            return current
        return items

    def _is_unchanged(self, current: object) -> bool:
        """Whether this object was not restored before; marks it as restored."""
        if id(current) in self._changed:
            return False
        self._changed[id(current)] = current
        return True


_DICT_KINDS: Mapping[str, type[dict[Any, Any]]] = {
    _DICT: dict, _ORDERED: collections.OrderedDict, _COUNTER: collections.Counter,
}  # fmt: skip


class _Digest(Protocol):
    def update(self, data: Any, /) -> None: ...


def _add_to_digest(value: Any, digest: _Digest, codec: AttributeCodec) -> None:
    if isinstance(value, list | dict):
        digest.update(f"{type(value).__name__}{len(value)};".encode())
        for item in value.items() if isinstance(value, dict) else value:
            _add_to_digest(list(item) if isinstance(value, dict) else item, digest, codec)
        return
    if type(value) is float:
        digest.update(b"float" + struct.pack("<d", value))
        return
    if value is None or type(value) in (bool, int, str):
        digest.update(f"{type(value).__name__}{value!r};".encode("utf-8", "surrogatepass"))
        return
    array = value if isinstance(value, np.ndarray | np.generic) else codec.read_tensor(value)
    array = np.asarray(array)
    kind = type(value).__name__
    digest.update(f"{kind}{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')};".encode())
    digest.update(np.ascontiguousarray(array).view(np.uint8) if array.size else b"")
