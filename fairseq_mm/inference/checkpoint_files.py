"""Finds the checkpoint files for the paths and names of the Hugging Face hub that a user gives."""

# neither torch nor fairseq: their import takes seconds, and a missing checkpoint is reported before
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

from fairseq_mm.data.input_files import compute_sha256, start_digest
from fairseq_mm.data.model_folder import CONFIG_FILE, WEIGHTS_FILE, check_links, read_config
from fairseq_mm.errors import UserError, first_line, import_extra

Path = Union[str, os.PathLike]
Paths = Union[Path, Sequence[Path]]

CHECKPOINT_NAMES = ("checkpoint_best.pt", "checkpoint_last.pt")
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9_./+-]{{0,199}}))?")
# endings of files: a missing one is a mistake in a path, and no model of the hub
_ENDINGS = (".pt", ".pth", ".tar", ".bin", ".npz", ".pkl", ".safetensors")
# the hub's tokens, and the credential after `Bearer` in an HTTP header
_SECRET = re.compile(r"hf_[A-Za-z0-9]{6,}|(?<=Bearer )[^\s'\"]+")

_LOG_IN = "(hf auth login, or the variable HF_TOKEN)"


def checkpoint_file(
    path: str, *, revision: Optional[str] = None, token: Optional[str] = None
) -> str:
    """Return the path of a checkpoint's file.

    Args:
        path: Checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``, or
            model folder with ``model.safetensors``. If there is no such file or folder, the name of
            a model of the Hugging Face hub, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, which is
            downloaded to the cache of huggingface_hub.
        revision: Branch, tag or commit of a model of the hub (default: its main branch).
        token: Access token of the hub (default: the token that huggingface_hub finds).
    """
    hub_name = None if os.path.lexists(path) else parse_hub_name(path, revision=revision)
    if hub_name is not None:
        path = download_model(hub_name, token=token)
    if os.path.isfile(path):
        return path
    # a folder of the hub may have further files, none of which is a checkpoint; if config.json is
    # missing, model.safetensors beside a checkpoint has the weights of a Hugging Face extractor
    is_exported = os.path.isfile(os.path.join(path, CONFIG_FILE))
    names = (WEIGHTS_FILE, *CHECKPOINT_NAMES)
    for name in names if is_exported else (*CHECKPOINT_NAMES, WEIGHTS_FILE):
        file = os.path.join(path, name)
        if os.path.isfile(file):
            if name == WEIGHTS_FILE and "torch" not in sys.modules:
                start_digest(file)  # meanwhile, the import of torch and fairseq takes seconds
            return file
    problem = f"has neither {' nor '.join(CHECKPOINT_NAMES)}, nor {WEIGHTS_FILE}"
    if not os.path.isdir(path):
        problem = "no such checkpoint or folder"
    raise UserError(f"{path}: {problem}.")


def checkpoint_files(
    path: Paths, *, revision: Optional[str] = None, token: Optional[str] = None
) -> list[str]:
    """Return the file paths of one checkpoint, or of several (a list, or a string joined by
    ``os.pathsep``), see :func:`checkpoint_file`."""
    if isinstance(path, (str, os.PathLike)):
        path = os.fspath(path).split(os.pathsep)
    names = [os.fspath(name) for name in path]
    if revision is not None and all(map(os.path.lexists, names)):
        raise UserError(f"`revision` is for models of the hub, but {names[0]} is on this machine.")
    return [checkpoint_file(name, revision=revision, token=token) for name in names]


def with_local_paths(path: str) -> str:
    """Check that checkpoints exist, and download checkpoints of the Hugging Face hub; return
    ``path`` with the paths of downloaded files in place of names."""
    names = path.split(os.pathsep)
    files = checkpoint_files(names)
    return os.pathsep.join(
        name if os.path.lexists(name) else file for name, file in zip(names, files)
    )


def compute_checkpoint_digest(file: str) -> str:
    """Return the SHA-256 of a checkpoint, in hexadecimal.

    If ``file`` is the ``model.safetensors`` of a model folder, return the digest of the checkpoint
    from which the folder was exported.
    """
    if os.path.basename(file) == WEIGHTS_FILE:
        return read_config(os.path.dirname(file) or os.curdir)["checkpoint_sha256"]
    return compute_sha256(file)


def compute_digests(files: Sequence[str]) -> Union[str, list[str]]:
    """Return the SHA-256 digest of a checkpoint or, for several, the list of their digests."""
    digests = [compute_checkpoint_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else digests


def parse_hub_name(text: str, *, revision: Optional[str] = None) -> Optional[str]:
    """Return the name of a model, ``OWNER/NAME`` or ``OWNER/NAME@REVISION``.

    ``text`` is no existing path. Return None if it has another form, looks like a file name, or
    begins with an existing folder, so that it is more likely a wrong path. ``revision`` is a
    revision that the user gave separately.
    """
    match = _NAME.fullmatch(text)
    if match is None or text.endswith(_ENDINGS):
        return None
    if revision is not None:
        text = f"{text}@{revision}"
        if _NAME.fullmatch(text) is None:
            raise UserError(f"{text:.120}: must be OWNER/NAME and one `revision`.")
        return text
    is_path = match[2] is None and os.path.isdir(text.partition("/")[0])
    return None if is_path else text


def parse_repository(text: str) -> str:
    """Return ``text`` if it is ``OWNER/NAME``."""
    match = _NAME.fullmatch(text)
    if match is None or match[2] is not None:
        raise UserError(f"{text}: must be OWNER/NAME, such as alice/captioner.")
    return text


def import_hub(purpose: str) -> Any:
    return import_extra("huggingface_hub", extra="hub", purpose=purpose)


def check_token(token: Optional[str]) -> None:
    """Check that an access token can be sent; the error message does not show the token."""
    # the HTTP library would show the whole header in its message
    if token is not None and (not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token)):
        raise UserError("`token` must be the text of an access token, without white space.")


def download_model(name: str, *, token: Optional[str] = None) -> str:
    """Download a model folder to the cache of huggingface_hub, except files that are there already;
    return the path of the folder in the cache.

    ``config.json`` is downloaded first, then the files that it names, all of the same commit.
    Without network, only the cache is used.
    """
    from fairseq_mm import __version__

    check_token(token)
    hub = import_hub(f"{name}: no such checkpoint or folder; a model of the Hugging Face hub")
    about = {"token": token, "library_name": "fairseq_mm", "library_version": __version__}
    repository, _, revision = name.partition("@")
    with named_hub_errors(name, token, unless="no such checkpoint or folder, and "):
        folder = os.path.dirname(_download_config(hub, repository, revision or None, about))
        check_links(folder)
        # the folder's name is the commit; the branch may have moved since
        commit = os.path.basename(folder)
        for file in (*read_config(folder)["files"], WEIGHTS_FILE):
            hub.hf_hub_download(repository, file, revision=commit, **about)
    return folder


def _download_config(
    hub: Any, repository: str, revision: Optional[str], about: dict[str, Any]
) -> str:
    """Download ``config.json`` of the revision's newest commit; return its path in the cache."""
    from huggingface_hub import errors

    cached = hub.try_to_load_from_cache(repository, CONFIG_FILE, revision=revision)
    cached = cached if isinstance(cached, str) else None
    commit = revision  # a commit never changes
    if cached is None or os.path.basename(os.path.dirname(cached)) != revision:
        url = hub.hf_hub_url(repository, CONFIG_FILE, revision=revision)
        try:
            # one request: hf_hub_download repeats it for half a minute if there is no network
            commit = hub.get_hf_file_metadata(url, **about).commit_hash
        except (errors.RevisionNotFoundError, errors.EntryNotFoundError):
            raise
        except Exception:
            if cached is None:
                raise
            return cached
    if cached is not None and os.path.basename(os.path.dirname(cached)) == commit:
        return cached
    return hub.hf_hub_download(repository, CONFIG_FILE, revision=revision, **about)


@contextlib.contextmanager
def named_hub_errors(name: str, token: Optional[str], *, unless: str = "") -> Iterator[None]:
    """Convert errors of huggingface_hub to UserErrors with the model's ``name``, but without
    ``token``; if the model or the hub is not found, the message contains ``unless``."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}: {_explain(error, token, unless)}") from None


# class name of an error of huggingface_hub -> message about a model; the first match counts
_HUB_ERRORS = {
    "GatedRepoError": "is gated on {host}: ask for access there, and log in {log_in}.",
    "RepositoryNotFoundError": "{unless}there is no such model on {host}; a private model needs a "
    "token {log_in}.",
    "RevisionNotFoundError": "has no such revision on {host}.",
    **dict.fromkeys(
        ("OfflineModeIsEnabled", "LocalEntryNotFoundError"),
        "{unless}huggingface_hub's cache has no such model, or only a part of it ({reason}).",
    ),
    "EntryNotFoundError": "is no model of fairseq_mm: a file is missing on {host} "
    f"({CONFIG_FILE}, {WEIGHTS_FILE} or its vocabulary).",
}


def _explain(error: Exception, token: Optional[str], unless: str) -> str:
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    for name, text in _HUB_ERRORS.items():
        if isinstance(error, getattr(errors, name)):
            reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{host} fails"
            return text.format(host=host, log_in=_LOG_IN, unless=unless, reason=reason)
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status in (401, 403):
        return f"{host} refuses it (status {status}): log in {_LOG_IN} with write access."
    text = f"{type(error).__name__}: {first_line(error)}"
    if token:
        text = text.replace(token, "***")
    return f"{unless}{host} cannot be reached, or fails ({_SECRET.sub('***', text).rstrip('.')})."
