"""``--arch``: one published system a file; shared parts begin with an underscore."""

from fairseq_mm.models import m_rnn

__all__ = ["m_rnn"]
