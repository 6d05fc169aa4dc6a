"""Backoff models as dictionaries, and their probabilities by the definition."""


def entries_of(model):
    """N-gram -> (log probability, backoff), both to base 10."""
    return {
        tuple(text.split(" ")): (log_prob, backoff)
        for table, texts in zip(model.tables, model.ngrams())
        for text, log_prob, backoff in zip(texts, table.log_probs, table.backoffs)
    }


def backed_off_log_prob(entries, history, word):
    """To base 10: the longest n-gram's, plus the backoffs of the histories that were cut."""
    if (*history, word) in entries:
        return entries[(*history, word)][0]
    backoff = entries[history][1] if history in entries else 0.0
    return backoff + backed_off_log_prob(entries, history[1:], word)
