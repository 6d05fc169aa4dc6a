"""On import, registers the package with fairseq and patches known bugs of fairseq.

Every module that loads checkpoints imports this module first, so that both happen once per process,
before any class of fairseq is used.
"""

from typing import Any

import fairseq_mm
from fairseq_mm import compat


class Picklable:
    """Base class of generators, embedders and captioners, which can be pickled and copied.

    Attributes:
        not_pickled: Names of attributes to leave out; an unpickled object computes them again.
    """

    not_pickled: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        # the pickle names `new_object` before any other class, so that a fresh process imports this
        # module first
        state = {name: x for name, x in vars(self).items() if name not in self.not_pickled}
        return new_object, (type(self),), state


def new_object(kind: Any) -> Any:
    """Return an object of the class ``kind`` without calling ``__init__``, for ``pickle``."""
    return kind.__new__(kind)


# last: a plugin that is registered may import this module
fairseq_mm.register()
compat.activate()
