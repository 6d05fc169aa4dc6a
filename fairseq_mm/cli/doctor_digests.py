"""Compares a data folder's files with the digests in ``prepare.json``, for ``fairseq-mm doctor``.

Digests show any change of a file, even if all files stay readable and all line counts agree.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.cli.doctor_data import ANEW, SPLITS, find_data_folder, read_prepare_record
from fairseq_mm.cli.doctor_environment import Finding, note, ok, problem
from fairseq_mm.cli.records import counted
from fairseq_mm.data.prepared_files import (
    STORE,
    STORE_LIST,
    FolderRecord,
    by_split,
    digest_file,
    read_record,
    repair_command,
    update_record,
)
from fairseq_mm.errors import UserError

# Tags, and the list of a user's stores, appear in a folder after `prepare`. They are not reported
# as unexpected files if they have no digest.
_MADE_LATER = (".tags", STORE_LIST)


class FolderDigests:
    """Comparison of the files of a data folder with their recorded SHA-256 digests.

    Args:
        folder: Path of the data folder, or of a language model's folder inside it.
        repair: True to add missing digests.
        accept: True to also replace digests that differ from the files.

    Attributes:
        record: Digests in ``prepare.json``; None if ``prepare.json`` has no digests.
        damage: Error message if ``prepare.json`` cannot be read; else empty.
        changed: Dict from the relative path of each changed file to the end of its error message,
            such as "is not the file that ...".
        unrecorded: Files without a digest, although ``prepare`` writes files of such names.
        stores: Dict from the relative path of a feature store to its number of items and checksum.
        is_whole: True if no file has changed since ``prepare`` wrote it, and none is missing.
    """

    def __init__(self, folder: str, *, repair: bool = False, accept: bool = False) -> None:
        self.folder, self.kind = find_data_folder(folder)
        self.repair = repair
        self.accept = accept
        self.record: Optional[FolderRecord] = None
        self.damage = ""
        self.changed: dict[str, str] = {}
        self.unrecorded: list[str] = []
        self.stores: dict[str, dict[str, Any]] = {}
        self.is_whole = False

    def check(self) -> Iterator[Finding]:
        """Compare all files with their digests, and yield a problem for each file that differs.

        With ``--repair``, differences are not reported here, but by :meth:`mend`.
        """
        from fairseq_mm.prepare.data_folder import is_half_moved

        if not os.path.isdir(self.folder) or is_half_moved(self.folder):
            return  # check_data reports both cases
        try:
            self.record = read_record(self.folder)
        except UserError as error:
            self.damage = str(error)
            if not self.accept:
                yield problem("digests", self.damage, ANEW)
            return
        present = self._prepared_files()
        if self.record is None:
            self.unrecorded = present
            if not self.repair:
                text = f"{self.folder} has none, so that files which no longer belong together can "
                text += "go unseen"
                yield note("digests", text, f"fairseq-mm doctor --data {self.folder} --repair")
            return
        files = self.record.files
        # Readers compare only the size of large files, so that a training starts at once.
        differences = {name: self.record.difference(name, whole=True) for name in files}
        differences[STORE] = self.record.store_place_difference()
        self.changed = {name: text for name, text in differences.items() if text is not None}
        others = [x for x in present if x not in files and not x.endswith(_MADE_LATER)]
        self.is_whole = not self.changed and not others
        # after `prepare --no-binarize` the user runs fairseq-preprocess, which records nothing
        if any(name.endswith(".idx") for name in files):
            self.unrecorded = others
        if not self.repair:
            yield from self._report_problems()
        if self.is_whole:
            yield ok(
                "digests", f"{len(files)} files of {self.folder} are as prepare.json records them"
            )

    def check_store(self, stores: Any) -> Iterator[Finding]:
        """Compare opened feature stores with ``prepare.json``: number of items, and checksum.

        Without ``--repair``, yields a problem for each store that differs. Stores that the data
        folder does not use are left out. The checksums inside the stores have been checked before.
        """
        from fairseq_mm.data.feature_store import listed_stores

        read = [path for path, _ in listed_stores(self.folder)]
        # --features may name other stores, or the folder's stores by another path.
        for store in stores.stores:
            own = next((path for path in read if os.path.samefile(store.path, path)), None)
            if own is None:
                continue
            name = os.path.relpath(own, self.folder)
            # A store of another program has no checksum; it is computed from the whole file.
            checksum = store.content_checksum or store.check_content()
            self.stores[name] = {"items": len(store), "checksum": checksum}
            recorded = self.record.stores.get(name) if self.record is not None else None
            if recorded is not None and recorded != self.stores[name]:
                self.changed[name] = (
                    f"is not the feature store of {recorded['items']} items that "
                    f"{self.folder}/prepare.json records"
                )
                if not self.repair:
                    yield self._build_problem(name)

    def mend(self, *, is_sound: bool) -> Iterator[Finding]:
        """Add missing digests and, with ``--accept-changes``, replace digests that differ.

        Yields findings about the changes of ``prepare.json``. Nothing is done without ``--repair``,
        or if the folder has other problems (``is_sound`` is False).
        """
        if not self.repair:
            return
        if self.damage and not self.accept:
            return  # `check` has reported it
        if not is_sound:
            yield from self._report_problems()
            text = f"none was added, because {self.folder} has the problems above"
            yield note("digests", text, "repair them first")
            return
        if not self.accept:
            yield from self._report_problems(with_unrecorded=False)
        old = {} if self.record is None else self.record.files
        remaining = {
            name: x for name, x in old.items() if name not in self.changed or not self.accept
        }
        new = {
            name: digest_file(os.path.join(self.folder, name))
            for name in self._prepared_files()
            if name not in remaining
        }
        changes: dict[str, Any] = {"digests": by_split({**remaining, **new})}
        changes.update(self._build_store_records())
        if not read_prepare_record(self.folder):
            changes["kind"] = self.kind  # a new prepare.json says which task reads the folder
        from fairseq_mm.prepare.data_folder import locked_output

        with locked_output(Path(self.folder)):
            update_record(self.folder, changes)
        if self.changed and not self.accept:
            added = f"{counted(len(new), 'digest')} added" if new else "nothing added"
            differing = ", ".join(sorted(self.changed))
            text = f"{added}; not replaced, because the files still differ: {differing}"
            yield note("digests", text, "see the problems above")
            return
        number = len(remaining) + len(new)
        yield ok("digests", f"{self.folder}/prepare.json has the digests of {number} files")

    def _build_store_records(self) -> dict[str, Any]:
        """Return new ``store`` and ``stores`` fields of ``prepare.json``; None removes a field."""
        # The record of a store that differs is kept unless the change is accepted.
        old = {} if self.record is None else self.record.stores
        remaining = {x: old[x] for x in old if not self.accept or x not in self.changed}
        new = {x: self.stores[x] for x in self.stores if self.accept or x not in self.changed}
        stores = {**new, **remaining}
        return {"store": stores.pop(STORE, None), "stores": stores or None}

    def _report_problems(self, *, with_unrecorded: bool = True) -> Iterator[Finding]:
        """Yield a problem for each changed file and, by default, for each file without a digest."""
        for name in self.changed:
            yield self._build_problem(name)
        for name in self.unrecorded if with_unrecorded and self.record is not None else ():
            text = "is not among the files that prepare.json records: prepare has not written it"
            remedy = "remove it or, if it belongs to the folder, give --repair"
            yield problem(os.path.join(self.folder, name), text, remedy)

    def _build_problem(self, name: str) -> Finding:
        remedy = f"{ANEW} or, if the change is meant, {repair_command(self.folder)}"
        path = os.path.join(self.folder, name)
        if name.startswith(os.pardir):  # a listed store outside the folder
            path = os.path.normpath(path)
        return problem(path, self.changed[name], remedy)

    def _prepared_files(self) -> list[str]:
        """Return the names of existing files that may have digests, including ``SPLIT.tags``."""
        try:
            from fairseq_mm.prepare.captions import CaptionWriter
            from fairseq_mm.prepare.prompts import PromptWriter
            from fairseq_mm.prepare.videos import VideoWriter
            from fairseq_mm.prepare.visual_stories import VisualStoryWriter
        except ImportError:  # a package is missing, which the doctor reports
            return []
        writers = (CaptionWriter, PromptWriter, VideoWriter, VisualStoryWriter)
        names = {f"{split}.tags" for split in SPLITS}
        names.update(*(writer.files() for writer in writers if writer.table.kind == self.kind))
        return sorted(x for x in names if os.path.isfile(os.path.join(self.folder, x)))
