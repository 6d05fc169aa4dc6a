"""Importing this module registers the package with fairseq and applies the repairs of fairseq.

Everything that loads a checkpoint imports it first. As a module it runs once per process, before
any class of fairseq is used.
"""

import fairseq_mm
from fairseq_mm import compat

fairseq_mm.register()
compat.activate()
