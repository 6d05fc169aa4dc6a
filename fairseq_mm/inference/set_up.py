"""On import, registers the package with fairseq and patches known bugs of fairseq."""

import fairseq_mm
from fairseq_mm import compat

# everything that loads a checkpoint imports this module first, so that both happen once per process
# and before any class of fairseq is used
fairseq_mm.register()
compat.activate()
