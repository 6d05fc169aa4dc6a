"""CIDEr-D by its equations."""

import math


def naive_cider_d(hypothesis, references, all_references):
    """CIDEr-D of one item, the vectors written out over every n-gram."""

    def grams(tokens, n):
        return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]

    total = 0.0
    for n in range(1, 5):
        vocabulary = sorted({g for t in [hypothesis, *references] for g in grams(t, n)})
        idf = []
        for gram in vocabulary:
            documents = sum(any(gram in grams(t, n) for t in item) for item in all_references)
            idf.append(math.log(len(all_references)) - math.log(max(1, documents)))
        for reference in references:
            h = [grams(hypothesis, n).count(g) * w for g, w in zip(vocabulary, idf)]
            r = [grams(reference, n).count(g) * w for g, w in zip(vocabulary, idf)]
            norms = math.sqrt(sum(x * x for x in h)) * math.sqrt(sum(x * x for x in r))
            if norms == 0:
                continue
            delta = len(grams(hypothesis, 2)) - len(grams(reference, 2))
            clipped = sum(min(x, y) * y for x, y in zip(h, r))
            total += clipped / norms * math.exp(-(delta**2) / (2 * 6.0**2))
    return 10 * total / (4 * len(references))
