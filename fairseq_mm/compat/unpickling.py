"""Unpickles only with the classes and functions in a table, one table for each kind of file.

With Python's unpickler, a pickle can call any function that it names. With this unpickler, it can
use only classes that hold values, and functions that rebuild tensors and arrays. It can set
attributes of such objects, never of a class or a function. The module works with every
version of PyTorch, whatever the default of ``weights_only`` of ``torch.load``.
"""

import argparse
import collections
import contextlib
import copyreg
import functools
import inspect
import math
import os
import pickle
import re
import tarfile
import threading
import types
import typing
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

import numpy as np

from fairseq_mm.errors import UserError

Table = Mapping[tuple[str, str], Any]

_REBUILDING = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")
# replaces the class, so that a pickle cannot call it
_PLAIN_TENSOR = "torch.Tensor"
_STORAGE = re.compile(r"[A-Za-z0-9]+Storage")
_SIMPLE_DTYPE = re.compile(r"[<>=|]?(\?|[bBiufcSUV]\d+|O8)")


def _shown(value: Any) -> str:
    # a list is not shown, because it could be far longer than its pickle
    if isinstance(value, str):
        return repr(value[:50])
    is_short = callable(value) or isinstance(value, (int, float))
    return str(value)[:100] if is_short else f"a {type(value).__name__}"


class Emptied(dict):
    """Empty dictionary that replaces an object, such as a meter, whose content is not needed."""

    def __init__(self, *unused: Any, **also_unused: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Return the bytes of a Latin-1 text; raise UnpicklingError for another ``encoding``.

    Replaces ``codecs.encode``: pickles of protocol 2 write bytes, such as the content of NumPy
    arrays, as a call of that function.
    """
    # for another encoding, Python would import a module of that name
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {_shown(encoding)}")
    return text.encode("latin1")


class Dtype:
    """Replacement of ``numpy.dtype`` in a pickle, which accepts only types of numbers and texts."""

    def __init__(self, code: Any, *unused: Any) -> None:
        # a description could claim that a structure of objects has no objects; numpy would then
        # read the bytes of an array as pointers
        if not isinstance(code, str) or not _SIMPLE_DTYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it asks for the numpy type {_shown(code)}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", ">", "=", "|") or any(x is not None for x in state[2:5]):
            raise pickle.UnpicklingError("its numpy type is a structure")
        self.dtype = self.dtype.newbyteorder(state[1])


def new_array(*unused: Any) -> np.ndarray:
    """Return an empty array; replaces the function with which pickles build NumPy arrays."""
    # shape and content of the array follow in the pickle, see `_checked_array_state`
    return np.empty((0,), "b")


def new_scalar(kind: Dtype, content: Any) -> Any:
    if isinstance(content, str):  # written by Python 2
        content = content.encode("latin1")
    if kind.dtype.hasobject or type(content) is not bytes or len(content) != kind.dtype.itemsize:
        raise pickle.UnpicklingError("its number of numpy has another size than its type")
    return np.frombuffer(content, kind.dtype)[0]


# containers and numbers, as Python 2 or 3 and any numpy write them
VALUES: Table = {
    ("argparse", "Namespace"): argparse.Namespace,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "defaultdict"): collections.defaultdict,
    # Python 2 writes this for an object of a class
    ("copyreg", "_reconstructor"): vars(copyreg)["_reconstructor"],
    ("builtins", "object"): object,
    ("builtins", "long"): int,
    ("builtins", "unicode"): str,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): Dtype,
    ("numpy", "ndarray"): np.ndarray,
    # numpy 2 has renamed the module
    **{
        (f"numpy.{core}.multiarray", name): rebuild
        for core in ("core", "_core")
        for name, rebuild in (("_reconstruct", new_array), ("scalar", new_scalar))
    },
    **{
        ("builtins", kind.__name__): kind
        for kind in (
            *(dict, list, tuple, set, frozenset),
            *(bool, int, float, complex, str, bytes, bytearray),
        )
    },
}
# names of modules in Python 2 -> names in Python 3
_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
# fairseq's meters of training, whose values nothing needs; see :class:`Emptied`
_METERS = (
    *("Meter", "AverageMeter", "SumMeter", "ConcatTensorMeter", "TimeMeter", "StopwatchMeter"),
    "MetersDict",
)
# stands for fairseq's class, which is imported only if a file has such an object
_DICTIONARY = "fairseq.data.Dictionary"
_WORDS_OF_DICTIONARY = ("bos_word", "pad_word", "eos_word", "unk_word")
_INDICES_OF_DICTIONARY = ("bos_index", "pad_index", "eos_index", "unk_index", "nspecial")
# classes that copy their argument, which must not be a size, or larger than its pickle
_COPYING = (str, bytes, bytearray, list, tuple, set, frozenset, dict)
_COPIED = (*_COPYING, collections.OrderedDict, type(None))
_MOST_COPIED = 10_000_000  # items, or 8 bytes each
_LARGEST_RATIO = 100  # size of the content by size of the archive; PyTorch compresses nothing
_RECONSTRUCTOR = VALUES["copyreg", "_reconstructor"]
# classes that a pickle may name, but not call
_UNCALLED = (object, np.ndarray, typing.Any)


def _tensor_with_attributes(rebuild: Any, kind: Any, args: Any, attributes: Any) -> Any:
    """Rebuild a tensor without the attributes that a library such as fairscale has set on it.

    Replaces ``torch._tensor._rebuild_from_type_v2``.

    Args:
        rebuild: Function of PyTorch that rebuilds the tensor.
        kind: Class of the tensor, which must be ``torch.Tensor``.
        args: Arguments of ``rebuild``.
        attributes: Attributes of the tensor, which are dropped.
    """
    if rebuild not in _rebuilding().values() or kind is not _PLAIN_TENSOR:
        raise pickle.UnpicklingError(f"it calls {_shown(rebuild)} for {_shown(kind)}")
    return rebuild(*args)


@functools.cache
def _rebuilding() -> Mapping[str, Any]:
    import torch

    functions = {name: getattr(torch._utils, name, None) for name in _REBUILDING}
    return {name: function for name, function in functions.items() if function is not None}


@functools.cache
def tensors() -> Table:
    """Return the classes and functions that a file of tensors in dictionaries and lists may use.

    The result is a dict from pairs (module, name), see :class:`RestrictedUnpickler`.
    """
    import torch

    dtypes = {name: x for name, x in vars(torch).items() if isinstance(x, torch.dtype)}
    storages = {name: x for name, x in vars(torch).items() if _STORAGE.fullmatch(name)}
    storages.update(
        {name: x for name, x in vars(torch.storage).items() if _STORAGE.fullmatch(name)}
    )
    return {
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch", "Size"): torch.Size,
        ("torch", "device"): torch.device,
        ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
        **{("torch._utils", name): function for name, function in _rebuilding().items()},
        ("torch", "Tensor"): _PLAIN_TENSOR,
        ("torch._tensor", "_rebuild_from_type_v2"): _tensor_with_attributes,
        **{("torch", name): dtype for name, dtype in dtypes.items()},
        **{
            (module, name): storage
            for module in ("torch", "torch.storage")
            for name, storage in storages.items()
        },
    }


@functools.cache
def checkpoints() -> Table:
    """Return the classes and functions that the pickle of a fairseq checkpoint may use.

    They suffice for tensors, plain values, omegaconf's options and fairseq's dictionaries. The
    result is a dict from pairs (module, name), see :class:`RestrictedUnpickler`.
    """
    import omegaconf
    from omegaconf import base, nodes

    holders = [
        *(omegaconf.DictConfig, omegaconf.ListConfig, base.ContainerMetadata, base.Metadata),
        *(nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode, nodes.IntegerNode),
        nodes.StringNode,
    ]
    return {
        **VALUES,
        **tensors(),
        ("typing", "Any"): typing.Any,
        ("fairseq.data.dictionary", "Dictionary"): _DICTIONARY,
        **{
            (module, name): Emptied
            for module in ("fairseq.meters", "fairseq.logging.meters")
            for name in _METERS
        },
        **{(holder.__module__, holder.__name__): holder for holder in holders},
    }


# written in Python, because the unpickler in C does not let a class check the calls
_PythonUnpickler: Any = pickle._Unpickler


class RestrictedUnpickler(_PythonUnpickler):
    """Unpickler that can use only the classes and functions in a table.

    Args:
        file: File object of the pickle.
        table: Dict from the pairs (module, name) that a pickle may use to the class or function, or
            to its replacement.
        **options: Further arguments of :class:`pickle.Unpickler`.
    """

    dispatch: typing.ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def __init__(self, file: Any, table: Table, **options: Any) -> None:
        super().__init__(file, **options)
        self._table = table
        self._dictionary: Optional[type] = None
        callables = [x for x in table.values() if callable(x) and not _is_storage(x)]
        callables = [x for x in callables if not any(x is other for other in _UNCALLED)]
        self._called = {id(x) for x in callables}
        self._num_copied = 0
        self._holders = tuple(x for x in callables if isinstance(x, type) and _has_attributes(x))

    def find_class(self, module: str, name: str) -> Any:
        module = _RENAMED.get(module, module)
        if (module, name) in self._table:
            entry = self._table[module, name]
            return self._import_dictionary() if entry is _DICTIONARY else entry
        if module.startswith("fairseq.") and name.endswith("Config"):
            return dict  # makes an omegaconf config untyped
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def _import_dictionary(self) -> type:
        if self._dictionary is None:
            from fairseq.data import Dictionary

            self._dictionary = Dictionary
            self._called.add(id(Dictionary))
        return self._dictionary

    def _check_call(self, function: Any, args: Any) -> None:
        if id(function) not in self._called:
            raise pickle.UnpicklingError(f"it calls {_shown(function)}")
        if function is _RECONSTRUCTOR and isinstance(args, tuple) and len(args) == 3:
            function, args = args[1], args[2:]
        is_class = isinstance(function, type) and function is not Emptied
        if not is_class or not issubclass(function, _COPYING):
            return
        for arg in args:
            is_text = function is not str or type(arg) in (str, bytes)
            if (type(arg) not in _COPIED and not isinstance(arg, type)) or not is_text:
                raise pickle.UnpicklingError(
                    f"it makes a {function.__name__} of a {type(arg).__name__}"
                )
            if isinstance(arg, _COPYING):
                is_of_bytes = isinstance(arg, (str, bytes, bytearray))
                self._count_copied(len(arg) // (8 if is_of_bytes else 1))
            if isinstance(arg, (list, tuple, set)):
                pairs = issubclass(function, dict)
                _check_keys(item[0] if pairs and item else item for item in arg)

    def _count_copied(self, number: int) -> None:
        self._num_copied += number
        if self._num_copied > _MOST_COPIED:
            raise pickle.UnpicklingError("it copies its content again and again")

    def load_reduce(self) -> None:
        function, args = self.stack[-2:]
        # constructors of omegaconf would copy their content; pickles of omegaconf set attributes
        if _is_of_omegaconf(function):
            raise pickle.UnpicklingError(f"it calls {_shown(function)}")
        self._check_call(function, args)
        super().load_reduce()

    def load_newobj(self) -> None:
        self._check_call(*self.stack[-2:])
        super().load_newobj()

    def load_newobj_ex(self) -> None:
        self._check_call(*self.stack[-3:-1])
        super().load_newobj_ex()

    def _instantiate(self, kind: Any, args: Any) -> None:
        if _is_of_omegaconf(kind):
            raise pickle.UnpicklingError(f"it calls {_shown(kind)}")
        self._check_call(kind, args)
        super()._instantiate(kind, args)

    def load_bytearray8(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        content = self.read(size)  # Python's method would allocate the size before it reads
        if len(content) < size:
            raise pickle.UnpicklingError("it is cut off")
        self.append(bytearray(content))

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        _check_keys(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        _check_keys(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        _check_keys(self.stack)
        super().load_frozenset()

    def load_build(self) -> None:
        state = self.stack.pop()
        holder = self.stack[-1]
        if type(holder) is np.ndarray:
            holder.__setstate__(_checked_array_state(state))
        elif self._dictionary is not None and type(holder) is self._dictionary:
            words = _checked_dictionary_state(state)
            self._count_copied(len(words["symbols"]))
            vars(holder).update(words)
        elif type(holder) in self._holders:
            if hasattr(type(holder), "__setstate__"):
                holder.__setstate__(state)
            elif not isinstance(state, dict):
                raise pickle.UnpicklingError("it sets attributes by other than their names")
            else:
                vars(holder).update(state)
        else:
            raise pickle.UnpicklingError(f"it sets attributes of {_shown(holder)}")

    def load_persid(self) -> None:
        raise pickle.UnpicklingError("it refers to other objects by text")

    def load_binpersid(self) -> None:
        reference = self.stack[-1]
        # files of the older format of PyTorch can also refer to modules with code
        if not isinstance(reference, tuple) or reference[:1] not in (("storage",), (b"storage",)):
            raise pickle.UnpicklingError("it refers to something that is no storage")
        super().load_binpersid()

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.PERSID[0]] = load_persid
    dispatch[pickle.BINPERSID[0]] = load_binpersid


def _check_keys(keys: Iterable[Any]) -> None:
    """Raise UnpicklingError if a key of a dictionary, or an item of a set, is a tuple of tuples."""
    # the hash of 40 tuples that each contain the next one twice would never be computed
    for key in keys:
        if type(key) is tuple and any(type(item) is tuple for item in key):
            raise pickle.UnpicklingError("its keys are nested")


def _is_of_omegaconf(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__.partition(".")[0] == "omegaconf"


def _is_storage(kind: Any) -> bool:
    return isinstance(kind, type) and _STORAGE.fullmatch(kind.__name__) is not None


def _has_attributes(kind: type) -> bool:
    return kind.__dictoffset__ != 0 and not hasattr(kind, "__torch_function__")


def _checked_array_state(state: Any) -> Any:
    version, shape, kind, is_fortran, content = state
    if type(shape) is not tuple or not all(type(x) is int and x >= 0 for x in shape):
        raise pickle.UnpicklingError("its array of numpy has no shape")
    if isinstance(content, str):  # written by Python 2
        content = content.encode("latin1")
    if type(kind) is not Dtype or type(content) is not (list if kind.dtype.hasobject else bytes):
        raise pickle.UnpicklingError("its array of numpy has another type than its content")
    if len(content) != math.prod(shape) * (1 if kind.dtype.hasobject else kind.dtype.itemsize):
        raise pickle.UnpicklingError("its array of numpy has another size than its content")
    return version, shape, kind.dtype, bool(is_fortran), content


def _checked_dictionary_state(state: Any) -> dict[str, Any]:
    """Return a copy of the attributes of a fairseq ``Dictionary`` in a pickle.

    Raise UnpicklingError if they are not consistent.
    """
    # copies, because the pickle could change the originals after the check
    needed = {"symbols": list, "count": list, "indices": dict}
    if type(state) is not dict or any(type(state.get(x)) is not needed[x] for x in needed):
        raise pickle.UnpicklingError("its Dictionary has no symbols, counts and indices")
    symbols, counts, indices = (needed[name](state[name]) for name in needed)
    if len(symbols) != len(counts) or not all(type(symbol) is str for symbol in symbols):
        raise pickle.UnpicklingError("its Dictionary has other symbols than strings with counts")
    if not all(type(count) is int for count in counts):
        raise pickle.UnpicklingError("its Dictionary has other counts than integers")
    # a symbol can occur twice; its index is then one of its positions
    is_index = (type(i) is int and 0 <= i < len(symbols) for i in indices.values())
    are_right = all(is_index) and all(symbols[i] == word for word, i in indices.items())
    if not are_right or len(indices) != len(set(symbols)):
        raise pickle.UnpicklingError("its Dictionary has other indices than those of its symbols")
    for name, value in state.items():
        is_word = name in _WORDS_OF_DICTIONARY and type(value) is str
        is_place = name in _INDICES_OF_DICTIONARY and type(value) is int
        is_place = is_place and 0 <= value <= len(symbols)
        if name not in needed and not is_word and not is_place:
            raise pickle.UnpicklingError(
                f"its Dictionary has the attribute {_shown(name)}, {_shown(value)}"
            )
    return {**state, "symbols": symbols, "count": counts, "indices": indices}


def explain_refusal(error: Exception) -> str:
    """Return a short reason, found from an exception, why a pickle cannot be read."""
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # a byte that is no instruction of pickle, or a line of text where pickle has a number
    is_byte = isinstance(error, KeyError) and list(map(type, error.args)) == [int]
    if is_byte or (isinstance(error, ValueError) and str(error).startswith("invalid literal")):
        return "it has another format"
    if isinstance(error, KeyError):
        return f"it has no {str(error)[:200]}"
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else "it is damaged"


def refusal(path: str, error: Exception, *, kind: str = "checkpoint") -> UserError:
    """Build the UserError for a file that :func:`read_torch_file` refuses.

    Args:
        path: Path of the file.
        error: Exception that was raised.
        kind: Description of the expected file, such as ``"fairseq checkpoint"``, for the message.
    """
    remedy = ""
    if isinstance(error, pickle.UnpicklingError):
        remedy = (
            " If you trust it, load it once with torch.load(..., weights_only=False), and save its "
            "tensors, containers and options."
        )
    return UserError(
        f"{path}: is no {kind} that can be loaded safely (with weights only): "
        f"{explain_refusal(error)}.{remedy}"
    )


def read_torch_file(file: Any, table: Table, *, map_location: Any = "cpu") -> Any:
    """Load a file with ``torch.load`` and :class:`RestrictedUnpickler`.

    Args:
        file: Path, or file object.
        table: Classes and functions that the file may use, see :class:`RestrictedUnpickler`.
        map_location: Device for the tensors, see ``torch.load``.

    Raises:
        pickle.UnpicklingError: if the file needs other classes or functions, is TorchScript or a
            tar archive, or its content is far larger than the file.
    """
    import torch

    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            return read_torch_file(opened, table, map_location=map_location)
    _refuse_other_forms(file)
    if "weights_only" not in inspect.signature(torch.load).parameters:
        options: dict[str, Any] = {}
    else:
        options = {"weights_only": False}  # PyTorch requires it for another unpickler
    module: Any = types.ModuleType("restricted_pickle")

    class Unpickler(RestrictedUnpickler):
        def __init__(self, file: Any, **options: Any) -> None:
            super().__init__(file, table, **options)

    module.Unpickler = Unpickler
    module.load = lambda file, **options: Unpickler(file, **options).load()
    with _our_unpickler_allowed():
        return torch.load(file, map_location=map_location, pickle_module=module, **options)


_environment_lock = threading.RLock()


@contextlib.contextmanager
def _our_unpickler_allowed() -> Iterator[None]:
    """Unset ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` inside the context.

    This environment variable makes ``torch.load`` refuse all unpicklers but PyTorch's own.
    """
    # PyTorch's unpickler allows more than this one
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    with _environment_lock:
        value = os.environ.pop(name, None)
        try:
            yield
        finally:
            if value is not None:
                os.environ[name] = value


def _check_records(archive: zipfile.ZipFile) -> None:
    """Raise UnpicklingError if a file in a zip archive does not match its CRC-32.

    ``torch.load`` does not check it, and would load weights with a changed byte.
    """
    records = [record for record in archive.infolist() if record.file_size]
    damaged = [record.filename for record in records if not _is_whole(archive, record)]
    # PyTorch can leave out the CRC-32 of all files (`torch.serialization.set_crc32_options`).
    if damaged and len(damaged) < len(records):
        raise pickle.UnpicklingError(f"its part {damaged[0]} is damaged: its CRC-32 differs")


def _is_whole(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(record) as content:
            while content.read(1 << 20):
                pass
    except zipfile.BadZipFile:
        return False
    return True


def _refuse_other_forms(file: Any) -> None:
    """Raise UnpicklingError for TorchScript, tar archives, and unsuitable zip archives.

    A zip archive is unsuitable if it is damaged or expands greatly. ``torch.load`` would run
    TorchScript. PyTorch before version 0.2 wrote tar archives.
    """
    import torch

    start = file.tell()
    is_zip = file.read(4) == b"PK\x03\x04"
    file.seek(start)
    try:
        if is_zip:
            reader: Any = torch._C.PyTorchFileReader(file)
            if reader.has_record("constants.pkl"):
                raise pickle.UnpicklingError("it is TorchScript, which is a program")
            file.seek(start)
            with zipfile.ZipFile(file) as archive:
                content = sum(record.file_size for record in archive.infolist())
                size = file.seek(0, os.SEEK_END)
                if content > _LARGEST_RATIO * size:
                    raise pickle.UnpicklingError(
                        f"it is an archive of {size:,} bytes that holds {content:,} bytes"
                    )
                _check_records(archive)
        else:
            with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=file, mode="r:"):
                raise pickle.UnpicklingError("it is a tar archive")
    finally:
        file.seek(start)
