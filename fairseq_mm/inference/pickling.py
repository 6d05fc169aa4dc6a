"""Defines the base class by which generators, embedders and captioners can be pickled."""

from typing import Any

from fairseq_mm.inference import set_up  # noqa: F401  (registers before fairseq's classes load)


def new_object(kind: Any) -> Any:
    """Return an object of the class ``kind`` without calling ``__init__``, for ``pickle``."""
    return kind.__new__(kind)


class Picklable:
    """Base class of objects that can be pickled and copied.

    Attributes:
        not_pickled: Names of attributes to leave out; an unpickled object computes them again.
    """

    not_pickled: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # the pickle names `new_object` before any other class, so that a fresh process imports this
        # module first, and with it the set-up
        state = {name: x for name, x in vars(self).items() if name not in self.not_pickled}
        return new_object, (type(self),), state
