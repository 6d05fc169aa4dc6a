"""Answers the server's search queries (sentences or images) with images of an indexed folder."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.image_index import FoundImage, ImageIndex, SearchResult
from fairseq_mm.report.thumbnails import thumbnail_uri
from fairseq_mm.serving.requests import Limits, Query
from fairseq_mm.serving.systems import KINDS, Watch

# number of images of a result: by default, and at most
COUNT, MOST = 10, 100
SIDE = 320  # pixels of a thumbnail


class SearchSystem:
    """Image index that answers queries with images of its folder.

    Args:
        name: Name on the page and in the API.
        index: Index of the folder.
        limits: Maximum sizes and times of requests.
    """

    kind = "search"
    reads_prompt = False
    batch_size = 16

    def __init__(self, name: str, index: ImageIndex, limits: Limits) -> None:
        self.name = name
        self.index = index
        self.limits = limits
        # loaded now, so that a missing model is reported before the server starts
        self.embedder = index.embedder
        self.about = f"{len(index):,} images"

    def describe(self) -> dict[str, Any]:
        kind = KINDS[self.kind]
        return {
            "name": self.name,
            "kind": self.kind,
            "path": kind.path,
            "purpose": kind.purpose,
            "about": self.about,
            "extractor": self.embedder.identity.get("extractor"),
            "presets": [],
            "options": {"count": COUNT, "thumbnails": False},
        }

    def answer(
        self, queries: Sequence[Query], watch: Watch
    ) -> Iterator[tuple[int, Union[dict[str, Any], UserError]]]:
        count, has_thumbnails = _check_options(queries[0].options)
        for position, query in enumerate(queries):
            try:
                result = self._search(query, count)
                yield position, self._build_record(query, result, has_thumbnails=has_thumbnails)
            except UserError as error:
                yield position, self.clean(error)
            # no generation, but a place to end early
            watch(dict.fromkeys(range(position + 1, len(queries)), str))

    def _search(self, query: Query, count: int) -> SearchResult:
        if isinstance(query.inputs, str):
            (result,) = self.index.search([query.inputs], count)
        else:
            (features,) = self.embedder.read_features([query.inputs], max_pixels=self.limits.pixels)
            if isinstance(features, UserError):
                raise features
            vectors = self.embedder.embed_features([features])
            (result,) = self.index.search_vectors(vectors, count)
        return result

    def _build_record(
        self, query: Query, result: SearchResult, *, has_thumbnails: bool
    ) -> dict[str, Any]:
        images = [self._describe_image(image, has_thumbnails) for image in result.images]
        return {
            "id": query.name,
            "query": query.inputs if isinstance(query.inputs, str) else query.label,
            "system": self.name,
            "images": images,
            "unknown_words": result.unknown_words,
            "stale": len(result.stale),
        }

    def _describe_image(self, image: FoundImage, has_thumbnail: bool) -> dict[str, Any]:
        about = {"id": image.id, "score": round(image.score, 6), "rank": image.rank}
        if has_thumbnail:
            about["thumbnail"] = thumbnail_uri(MediaFile(image.id, image.path), SIDE)
        return about

    def clean(self, error: UserError) -> UserError:
        message = str(error).replace(self.index.path, self.name)
        return UserError(message.replace(os.path.join(self.index.folder, ""), ""))


def _check_options(options: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the options ``count`` and ``thumbnails``; raise UserError for a wrong option."""
    for name in options:
        if name not in ("count", "thumbnails"):
            raise UserError(f"`{name}` is no option of a search.")
    count = typed_option("count", options.get("count", COUNT), int)
    if not 1 <= count <= MOST:
        raise UserError(f"`count` must be from 1 to {MOST}, but is {count}.")
    return count, typed_option("thumbnails", options.get("thumbnails", False), bool)
