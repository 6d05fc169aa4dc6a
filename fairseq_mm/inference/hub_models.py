"""Finds and downloads model folders of the Hugging Face hub."""

# neither torch nor fairseq: their import takes seconds, and a missing model is reported before
import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.model_folder import CONFIG_FILE, WEIGHTS_FILE, check_links, read_config
from fairseq_mm.errors import UserError, import_extra

_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9][A-Za-z0-9_./+-]{{0,199}}))?")
# endings of files: a missing one is a mistake in a path, and no model of the hub
_ENDINGS = (".pt", ".pth", ".tar", ".bin", ".npz", ".pkl", ".safetensors")
# tokens of the hub, and what follows the name of the scheme in a header
_SECRET = re.compile(r"hf_[A-Za-z0-9]{6,}|(?<=Bearer )[^\s'\"]+")

_LOG_IN = "(hf auth login, or the variable HF_TOKEN)"


class HubName(NamedTuple):
    """Name of a model on the hub.

    Attributes:
        repository: ``OWNER/NAME``.
        revision: Branch, tag or commit; None for the main branch.
    """

    repository: str
    revision: Optional[str]

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def parse_hub_name(text: str, *, revision: Optional[str] = None) -> Optional[HubName]:
    """Parse ``OWNER/NAME`` or ``OWNER/NAME@REVISION``.

    Args:
        text: Name that the user gave, which is no existing file or folder.
        revision: Revision that the user gave separately.

    Returns:
        The name. None if ``text`` has another form, is the name of a file, or begins with an
        existing folder and is therefore more likely a wrong path.
    """
    match = _NAME.fullmatch(text)
    if match is None or text.endswith(_ENDINGS):
        return None
    repository, written = match.groups()
    if revision is not None and written is not None:
        raise UserError(f"{text}: has a revision already; leave `revision` out.")
    if revision is not None and _NAME.fullmatch(f"{repository}@{revision}") is None:
        raise UserError(f"`revision` must be a branch, tag or commit, but is {revision!r:.80}.")
    written = written if revision is None else revision
    if written is None and os.path.isdir(repository.partition("/")[0]):
        return None
    return HubName(repository, written)


def parse_repository(text: str) -> str:
    """Return ``text`` if it is ``OWNER/NAME``."""
    match = _NAME.fullmatch(text)
    if match is None or match[2] is not None:
        raise UserError(f"{text}: must be OWNER/NAME, such as alice/captioner.")
    return text


def import_hub(purpose: str) -> Any:
    """Import huggingface_hub; ``purpose`` says in the error message what needs the package."""
    return import_extra("huggingface_hub", extra="hub", purpose=purpose)


def check_token(token: Optional[str]) -> None:
    """Check that an access token can be sent; the error message does not show the token."""
    # the HTTP library would show the whole header in its message
    if token is not None and (not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token)):
        raise UserError("`token` must be the text of an access token, without white space.")


def download_model(name: HubName, *, token: Optional[str] = None) -> str:
    """Download a model folder to the cache of huggingface_hub; files in the cache are reused.

    ``config.json`` is downloaded first, then the files that it names, all of the same commit.
    Without network, only the cache is used.

    Args:
        name: Name of the model.
        token: Access token (default: the token that huggingface_hub finds).

    Returns:
        Path of the folder in the cache.
    """
    from fairseq_mm import __version__

    check_token(token)
    hub = import_hub(f"{name}: no such checkpoint or folder; a model of the Hugging Face hub")
    about = {"token": token, "library_name": "fairseq_mm", "library_version": __version__}
    with named_hub_errors(str(name), token, unless="no such checkpoint or folder, and "):
        folder = os.path.dirname(_download_config(hub, name, about))
        check_links(folder)
        # the folder's name is the commit; the branch may have moved since
        commit = os.path.basename(folder)
        for file in (*read_config(folder)["files"], WEIGHTS_FILE):
            hub.hf_hub_download(name.repository, file, revision=commit, **about)
    return folder


def _download_config(hub: Any, name: HubName, about: dict[str, Any]) -> str:
    """Download ``config.json`` of the revision's newest commit; return its path in the cache.

    Args:
        hub: Package huggingface_hub.
        name: Name of the model.
        about: Further arguments of the library's functions.
    """
    from huggingface_hub import errors

    repository, revision = name
    cached = hub.try_to_load_from_cache(repository, CONFIG_FILE, revision=revision)
    cached = cached if isinstance(cached, str) else None
    url = hub.hf_hub_url(repository, CONFIG_FILE, revision=revision)
    if cached is not None and os.path.basename(os.path.dirname(cached)) == revision:
        return cached  # a commit never changes
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
    """Convert errors of huggingface_hub to errors of one line that does not show ``token``.

    The line begins with the model's ``name``. If the model is not found, or the hub cannot be
    reached, ``unless`` follows.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{name}: {_explain(error, token, unless)}") from None


def _explain(error: Exception, token: Optional[str], unless: str) -> str:
    """Describe an exception of huggingface_hub in one line that shows no access token.

    ``unless`` begins the line if the model is not found, or the hub cannot be reached.
    """
    from huggingface_hub import constants, errors

    host = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"is gated on {host}: ask for access there, and log in {_LOG_IN}."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{unless}there is no such model on {host}; a private model needs a token {_LOG_IN}."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"has no such revision on {host}."
    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{host} fails"
        return (
            f"{unless}huggingface_hub's cache has no such model, or only a part of it ({reason})."
        )
    if isinstance(error, errors.EntryNotFoundError):
        return (
            f"is no model of fairseq_mm: a file is missing on {host} ({CONFIG_FILE}, "
            f"{WEIGHTS_FILE} or its vocabulary)."
        )
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status in (401, 403):
        return f"{host} refuses it (status {status}): log in {_LOG_IN} with write access."
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
    if token:
        text = text.replace(token, "***")
    return f"{unless}{host} cannot be reached, or fails ({_SECRET.sub('***', text).rstrip('.')})."
