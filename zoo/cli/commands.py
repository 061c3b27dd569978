"""The commands of `zoo`, for tyro, which makes their flags and help texts of signatures and docstrings."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import zoo
from zoo.cli.compare import compare
from zoo.cli.data import data
from zoo.cli.doctor import doctor
from zoo.cli.embed import embed
from zoo.cli.listing import info, list_models
from zoo.errors import ZooError, needs
from zoo.files import sha256
from zoo.hub.store import keep, onnx_file, read_card

if TYPE_CHECKING:
    pass


def keep_run(run: Path, /, force: bool = False, inside: bool = False) -> None:
    """Copy a trained run into the local store, so that `zoo.load` finds it by its name.

    Args:
        run: The run folder.
        force: Replace a kept model of the same name.
        inside: Put it into the package itself, zoo/weights/NAME, at half its size: the matrices in float16.
    """
    if not inside:
        print(keep(run, force=force))
        return
    with needs("core"):
        from zoo.release.bundle import keep_inside

    folder, gap = keep_inside(run, force=force)
    print(f"{folder}: embeddings differ from the run's by {gap:.1e} of the largest value")


def publish_model(model: str, /, repo: str, private: bool = False, dry_run: bool = False) -> None:
    """Upload a model to the Hugging Face Hub, tagged; prints its line for the catalog, zoo/catalog.jsonl.

    Args:
        model: A run folder, or the name of a model that is kept or came with the package.
        repo: ORG/NAME.
        private: Make a new repository private.
        dry_run: Write and check everything in RUN/hub, but upload nothing.
    """
    with needs("export"), redirect_stdout(sys.stderr):  # stdout is the catalog's
        from serve.export import export
        from zoo.hub.resolve import locate
        from zoo.release.publish import build_release, publish

        run = locate(model)
        if not onnx_file(run).is_file():
            export(str(run))
    if dry_run:
        folder = build_release(run, repo)
        for path in sorted(folder.iterdir()):
            print(f"{path.stat().st_size:12,}  {sha256(path)}  {path.name}")
        print(f"{folder}: checked, not uploaded. Without --dry-run it goes to {repo}")
        return
    card, commit = publish(run, repo=repo, private=private)
    print(f"{repo} {commit.tag}: {commit.revision}", file=sys.stderr)
    print(card.to_line(), end="")


def verify_model(model: str, /, url: str | None = None) -> None:
    """Compare embeddings with the golden ones that were published with the model: torch, ONNX, a running server.

    Args:
        model: A name of the zoo, a run folder, or hf://ORG/NAME.
        url: Of a server of this model, such as http://localhost:3000.
    """
    with needs("core"):
        from zoo.release.verify import verify

    for by, gap in verify(model, url=url).items():
        print(f"{by}: equal but for {gap:.1e} of the largest value")


def convert_checkpoint(
    file_or_model: str,
    /,
    name: Annotated[str | None, tyro.conf.arg(name="as")] = None,
    to: Literal["torchvision", "detectron2"] | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    source: str | None = None,
) -> None:
    """Turn a published checkpoint into a run folder (--as), or a ResNet of this zoo into a file for torchvision or
    Detectron2 (--to). MoCo, MoCo v3, SimCLR ports, solo-learn, Dual-temperature, OpenMMLab, lightly, VISSL, DINO.

    Args:
        file_or_model: With --as the .pth, .pth.tar or .ckpt, of which only tensors are read; with --to a name or a run
            folder.
        name: The model it is: mocov2-r50-in1k.
        to: Whose keys the file shall have.
        out: The folder to write, by default runs/NAME; with --to the file.
        source: Whose code wrote the file, where its keys do not show it: plain, google-simclr, solo-learn, ...
    """
    if (name is None) == (to is None):
        raise ZooError("in: zoo convert FILE --as NAME; out: zoo convert MODEL --to torchvision -o FILE")
    if name is not None:
        with needs("core"):
            from zoo.hub.convert import convert

        folder = convert(Path(file_or_model), name=name, out=out, source=source)
        card = read_card(folder)
        print(folder)
        print(f"written by {card.training['source']}; left behind: {card.training['left_behind']}")
        print(f"normalises RGB in [0, 1] by mean {list(card.mean)}, std {list(card.std)}")
        return
    if to is None or out is None:
        raise ZooError(f"where to? zoo convert {file_or_model} --to {to} -o FILE")
    with needs("core"):
        from zoo.release.key_formats import export

    encoder = zoo.load(file_or_model)
    export(encoder, out, to=to)
    mean, std = encoder.mean.flatten().tolist(), encoder.std.flatten().tolist()
    print(f"{out}: normalise RGB in [0, 1] by mean {mean}, std {std}")


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_models,
    "info": info,
    "data": data,
    "embed": embed,
    "keep": keep_run,
    "verify": verify_model,
    "publish": publish_model,
    "convert": convert_checkpoint,
    "compare": compare,
    "doctor": doctor,
}


def run(about: str) -> None:
    """The command that `sys.argv` asks for. about: the first lines of `zoo --help`."""
    tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="zoo", description=about)
