"""Checkpoints that the papers' authors and OpenMMLab publish as files: one row a name.

The addresses, hashes, results and licences are those of the publishers' own pages: facebookresearch/moco README.md,
facebookresearch/moco-v3 CONFIG.md, open-mmlab/mmpretrain configs/{simclr,mocov2,mocov3}/metafile.yml.
"""

from dataclasses import dataclass

NONCOMMERCIAL = "CC-BY-NC-4.0"
SIZES = {"r50": 94_245_032, "vits16": 86_662_656, "vitb16": 343_194_624}  # bytes of the tensors that are kept
PARAMETERS = {"r50": 23_508_032, "vits16": 21_665_664, "vitb16": 85_798_656}


@dataclass(frozen=True)
class AuthorFile:
    """One checkpoint at its publisher's address."""

    url: str
    top1: float  # %, linear evaluation on ImageNet-1k as the publisher states it
    licence: str  # SPDX identifier
    layout: str  # of `zoo.hub.layouts`
    publisher: str  # whose page states all this
    digest: str = ""  # "md5:" or "sha256:" and the first hex digits, as the publisher states them; "" if not at all


def _meta(path: str, top1: float, layout: str = "mocov3", md5: str = "") -> AuthorFile:
    page = "facebookresearch/moco README.md" if layout == "moco" else "facebookresearch/moco-v3 CONFIG.md"
    return AuthorFile(
        url=f"https://dl.fbaipublicfiles.com/{path}",
        top1=top1,
        licence=NONCOMMERCIAL,
        layout=layout,
        publisher=page,
        digest=f"md5:{md5}" if md5 else "",
    )


def _openmmlab(method: str, run: str, stamp: str, top1: float) -> AuthorFile:
    """`stamp` ends in the first 8 hex digits of the file's sha256, as all of OpenMMLab's file names do."""
    return AuthorFile(
        url=f"https://download.openmmlab.com/mmselfsup/1.x/{method}/{run}/{run}{stamp}.pth",
        top1=top1,
        licence="Apache-2.0",
        layout="openmmlab",
        publisher=f"open-mmlab/mmpretrain configs/{method}/metafile.yml",
        digest=f"sha256:{stamp.rpartition('-')[2]}",
    )


AUTHOR_FILES: dict[str, AuthorFile] = {
    "mocov1-r50-in1k": _meta(
        "moco/moco_checkpoints/moco_v1_200ep/moco_v1_200ep_pretrain.pth.tar", 60.6, "moco", "b251726a"
    ),
    "mocov2-r50-in1k": _meta(
        "moco/moco_checkpoints/moco_v2_200ep/moco_v2_200ep_pretrain.pth.tar", 67.7, "moco", "59fd9945"
    ),
    "mocov2-r50-in1k-800ep": _meta(
        "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar", 71.1, "moco", "a04e12f8"
    ),
    "mocov3-r50-in1k": _meta("moco-v3/r-50-100ep/r-50-100ep.pth.tar", 68.9),
    "mocov3-r50-in1k-300ep": _meta("moco-v3/r-50-300ep/r-50-300ep.pth.tar", 72.8),
    "mocov3-r50-in1k-1000ep": _meta("moco-v3/r-50-1000ep/r-50-1000ep.pth.tar", 74.6),
    "mocov3-vits16-in1k": _meta("moco-v3/vit-s-300ep/vit-s-300ep.pth.tar", 73.2),
    "mocov3-vitb16-in1k": _meta("moco-v3/vit-b-300ep/vit-b-300ep.pth.tar", 76.7),
    "simclr-r50-in1k-200ep": _openmmlab(
        "simclr", "simclr_resnet50_16xb256-coslr-200e_in1k", "_20220825-4d9cce50", 66.9
    ),
    "simclr-r50-in1k-800ep": _openmmlab(
        "simclr", "simclr_resnet50_16xb256-coslr-800e_in1k", "_20220825-85fcc4de", 69.2
    ),
    "mocov2-r50-in1k-mm": _openmmlab("mocov2", "mocov2_resnet50_8xb32-coslr-200e_in1k", "_20220825-b6d23c86", 67.5),
    "mocov3-r50-in1k-mm100": _openmmlab(
        "mocov3", "mocov3_resnet50_8xb512-amp-coslr-100e_in1k", "_20220927-f1144efa", 69.6
    ),
    "mocov3-r50-in1k-mm300": _openmmlab(
        "mocov3", "mocov3_resnet50_8xb512-amp-coslr-300e_in1k", "_20220927-1e4f3304", 72.8
    ),
    "mocov3-r50-in1k-mm800": _openmmlab(
        "mocov3", "mocov3_resnet50_8xb512-amp-coslr-800e_in1k", "_20220927-e043f51a", 74.4
    ),
    "mocov3-vits16-in1k-mm": _openmmlab(
        "mocov3", "mocov3_vit-small-p16_16xb256-amp-coslr-300e_in1k", "-224_20220826-08bc52f7", 73.6
    ),
    "mocov3-vitb16-in1k-mm": _openmmlab(
        "mocov3", "mocov3_vit-base-p16_16xb256-amp-coslr-300e_in1k", "-224_20220826-25213343", 76.9
    ),
}
