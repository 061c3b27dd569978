"""The authors' weights of a name: fetched from their own address, checked, converted, kept under the name.

    zoo.load("mocov2-r50-in1k")

What is kept is a model folder in $ZOO_HOME/models whose card states address, hash, licence and published result. The
downloaded file itself is deleted once it is converted.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from zoo.errors import CorruptFile
from zoo.files import locked, make_folder, new_folder, sha256, write_bytes, zoo_home
from zoo.hub.author_files import AUTHOR_FILES, AuthorFile
from zoo.hub.catalog import author_card
from zoo.hub.licences import check_licence, noncommercial
from zoo.hub.store import CARD, kept_folder
from zoo.provenance import today


def fetch_author_model(name: str) -> Path:
    """The folder of a name's published checkpoint, fetched and converted if it is not here.

    Raises:
        LicenceRefused: The licence forbids commercial use, and `ZOO_COMMERCIAL` is set.
        NoWeights, Unreachable, CorruptFile, ZooError: See `zoo.hub.download.download` and `zoo.hub.convert.convert`.
    """
    row, target = AUTHOR_FILES[name], kept_folder(name)
    check_licence(name, row.licence)
    downloads = zoo_home() / "downloads" / name
    make_folder(downloads)
    with locked(downloads):
        if (target / CARD).is_file():  # another process was faster
            return target
        from zoo.hub.download import download

        _announce(name, row)
        file = download(row.url, downloads, digest=row.digest, name=name)
        try:
            digest = sha256(file)
            _check_pin(name, row, digest)
            _keep(name, row, file, target)
            _report(name, row, _pin(name, row, digest, file.stat().st_size), target)
        finally:
            file.unlink()
    return target


def _keep(name: str, row: AuthorFile, file: Path, target: Path) -> None:
    """Convert the file into the folder of the name. Raises what `convert_tensors` does."""
    from zoo.hub.checkpoint import read_checkpoint
    from zoo.hub.convert import convert_tensors

    card = author_card(name)
    facts = card.training | {"converted_from": row.url.rpartition("/")[2], "sha256": sha256(file)}
    try:
        tensors = read_checkpoint(file)
    except CorruptFile as error:
        raise CorruptFile(str(error).replace(str(file), row.url)) from error
    converted = convert_tensors(tensors, name=name, where=row.url, source=row.layout, facts=facts)
    found = converted.encoder.card
    assert found is not None
    converted.encoder.card = replace(
        found, paper=card.paper, expects=card.expects, licence=row.licence, parameters=card.parameters
    )
    with new_folder(target) as aside:
        converted.save(aside)


def _pin_file(name: str) -> Path:
    return zoo_home() / "pins" / f"{name}.json"


def _check_pin(name: str, row: AuthorFile, digest: str) -> None:
    """Raises CorruptFile if the publisher states no hash and the file has changed since its first fetch."""
    path = _pin_file(name)
    if row.digest or not path.is_file():
        return
    try:
        pin = json.loads(path.read_text())
        before, when = pin["sha256"], pin["date"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"{path} is damaged ({error}). Delete it to pin {name} anew") from error
    if before != digest:
        raise CorruptFile(
            f"{row.url} has other content than at its first fetch on {when}: sha256 {digest[:12]}... instead of "
            f"{before[:12]}... Nothing of it is kept. If its publisher has replaced it, delete {path} to accept it"
        )


def _pin(name: str, row: AuthorFile, digest: str, size: int) -> str:
    """Note the hash of a file that its publisher states none of, once. Returns it; "" if one is stated."""
    if row.digest:
        return ""
    if not _pin_file(name).is_file():
        pin = {"url": row.url, "sha256": digest, "bytes": size, "date": today()}
        write_bytes(_pin_file(name), json.dumps(pin, indent=1).encode())
    return digest


def _announce(name: str, row: AuthorFile) -> None:
    print(f"{name}: fetching the weights of {row.publisher.split()[0]} from {row.url}", file=sys.stderr)
    terms = ": no commercial use. ZOO_COMMERCIAL=1 refuses such weights" if noncommercial(row.licence) else ""
    print(f"{name}: licence {row.licence}{terms}", file=sys.stderr)


def _report(name: str, row: AuthorFile, pinned: str, target: Path) -> None:
    checked = f"the publisher's {row.digest.replace(':', ' ')}..."
    if pinned:
        checked = f"nothing, since its publisher states no hash: sha256 {pinned[:12]}... is pinned from now on"
    print(f"{name}: checked against {checked}; kept in {target}", file=sys.stderr)
