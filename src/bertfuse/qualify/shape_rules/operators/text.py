"""Operators on strings, and on n-grams."""

from __future__ import annotations

import numpy as np

from ..draw import Draw
from .registry import draws


def _words(d: Draw, rank: tuple[int, int] = (0, 3)) -> str:
    return d.tensor((object,), rank)


@draws("StringConcat")
def string_concat(d: Draw, op: str) -> None:
    name = _words(d)
    d.node(op, [name, d.broadcasting(d.shape(name), object)])


@draws("StringSplit")
def string_split(d: Draw, op: str) -> None:
    d.node(op, [_words(d)], outputs=2, delimiter=d.maybe(d.r.choice((" ", ","))), maxsplit=d.maybe(1, 0.3))


@draws("RegexFullMatch")
def regex_full_match(d: Draw, op: str) -> None:
    d.node(op, [_words(d)], pattern=d.r.choice(("a", ".*", "[a-z ]+")))


@draws("StringNormalizer")
def string_normalizer(d: Draw, op: str) -> None:
    shape = d.r.choice(([d.r.choice((1, 2, 3))], [1, d.r.choice((1, 2, 3))]))
    d.node(op, [d.new(shape, object)], stopwords=d.maybe(["a"]), is_case_sensitive=d.maybe(1, 0.9),
           case_change_action=d.maybe("NONE"))  # fmt: skip


@draws("TfIdfVectorizer")
def tf_idf(d: Draw, op: str) -> None:
    name = d.new(d.r.choice(([d.size()], [d.size(), d.size()])), d.r.choice((np.int64, np.int32)))
    d.node(op, [name], mode=d.r.choice(("TF", "IDF", "TFIDF")), min_gram_length=1, max_gram_length=2,
           max_skip_count=d.r.randrange(2), ngram_counts=[0, 2], ngram_indexes=d.r.choice(([0, 1, 2], [0, 2, 4])),
           pool_int64s=[1, 2, 1, 3], weights=d.maybe([1.0, 2.0, 3.0], 0.4))  # fmt: skip
