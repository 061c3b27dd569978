"""Publishing a folder on the Hugging Face Hub."""

from pathlib import Path
from typing import NamedTuple

from zoo.errors import ZooError, needs
from zoo.hub.hub_api import Address, ask, endpoint

with needs("core"):
    from huggingface_hub import HfApi, ModelCard, get_session

PATIENT = 120.0  # seconds without a byte


def check_model_card(text: str) -> None:
    """Raises ZooError if the Hub would not read the card's header, or its results."""
    try:
        data = ModelCard(text).data
    except Exception as error:  # yaml's and the Hub's classes, for one fact
        raise ZooError(f"the model card's header is not readable: {error}") from error
    if not data.to_dict().get("license"):
        raise ZooError("the model card has no header")


class Upload(NamedTuple):
    """A commit on the Hub and its tag."""

    revision: str
    tag: str


def upload(folder: Path, repo: str, *, private: bool) -> Upload:
    """Make `repo` hold exactly the files of `folder`, under a new tag v1, v2, ...; no tag ever moves.

    The same files once more make no commit and no tag. Raises AccessDenied, Unreachable.
    """
    api, address = HfApi(endpoint=endpoint()), Address(repo)
    get_session().timeout = PATIENT  # its own is to wait without end
    ask(address, lambda: api.create_repo(repo, private=private, exist_ok=True))
    refs = ask(address, lambda: api.list_repo_refs(repo))
    head = next(branch.target_commit for branch in refs.branches if branch.name == "main")
    commit = ask(address, lambda: api.upload_folder(
        repo_id=repo, folder_path=folder, commit_message="The model", delete_patterns="*", parent_commit=head,
    ))  # fmt: skip
    tags = {tag.name: tag.target_commit for tag in refs.tags}
    for tag, target in tags.items():
        if target == commit.oid:
            return Upload(commit.oid, tag)
    tag = next(f"v{n}" for n in range(1, len(tags) + 2) if f"v{n}" not in tags)
    ask(address, lambda: api.create_tag(repo, tag=tag, revision=commit.oid))
    return Upload(commit.oid, tag)
