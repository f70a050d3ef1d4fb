"""Office-Caltech10, DomainNet and PACS: photographs, drawings and paintings of the same few classes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from rayfl.data.dataset import TRAIN, UNUSED, VAL
from rayfl.data.readers.files import read_packed, unpickle
from rayfl.data.sets.folders import DomainFolders, Found, origin_of, plain_name, stratified
from rayfl.errors import Damaged
from rayfl.system.files import convert_content, explain_decode_errors
from rayfl.system.text import warn

ALL_OR_NONE = "Complete the lists, remove all of them"
_FRESH = "replace it by a fresh copy"


class _Published(DomainFolders):
    """What the data sets share whose domains, classes and numbers of images are known."""

    published: ClassVar[Mapping[str, int]]  # images per domain
    order: ClassVar[Mapping[str, tuple[str, ...]]]  # split -> domains in the order of the clients
    classes: ClassVar[tuple[str, ...]]
    places: ClassVar[tuple[str, ...]]  # folders below root that may hold the domains

    def published_sizes(self) -> Mapping[str, int]:
        """Return the published number of images in each domain."""
        return self.published

    def find(self) -> Found:
        """Look for the images."""
        domains = self.order[self.split]
        return self.scan(self.home(*self.places, domains=domains), domains, self.classes)

    def origin(self, found: Found) -> np.ndarray:
        """Leave the division of the images in use to ``divide``."""
        origin = self.origin_of_used(found)
        self.check_counts(found, origin)
        return origin

    def origin_of_used(self, found: Found) -> np.ndarray:
        """Return TRAIN for images that are in use, and UNUSED for others."""
        return np.full(len(found.files), TRAIN, np.uint8)

    def check_counts(self, found: Found, origin: np.ndarray) -> None:
        """Check, with `verify`, that each domain has as many images in use as were published."""
        if not self.verify:
            return
        for k, name in enumerate(found.domain_names):
            n = int((origin[found.domains == k] != UNUSED).sum())
            if n != self.published[name]:
                problem = f"has {n} images of domain {name}, and {self.published[name]} were published"
                remedy = "complete the folder, or use it as it is with --data.verify false"
                raise Damaged(found.root, problem, remedy)


class _Protocols(_Published):
    """What the data sets share that both FedBN and FDSE have used, each in its own way."""

    colour = "grey unless RGB"
    shares: ClassVar[tuple[float, float]]  # FedBN's sizes for training and validation, of the smallest list

    augment: bool | None = None
    """Whether training images are flipped and turned at random; by default with split=fedbn, as FedBN does,
    and not with split=fdse.
    """
    split: Literal["fedbn", "fdse"] = "fedbn"
    """``fedbn`` divides as FedBN's lists do (or 80/20 where there are none); ``fdse`` is random 80/10/10
    for training, validation and testing, drawn from the seed.
    """
    scale: Literal["fedbn", "full"] = "fedbn"
    """With split=fedbn, whether clients train on the few images of FedBN's protocol (``fedbn``, which also
    sets validation images aside) or on their whole training lists (``full``).
    """

    @property
    def augments(self) -> bool:
        """Whether training images are augmented."""
        return self.split == "fedbn" if self.augment is None else self.augment

    def origin(self, found: Found) -> np.ndarray:
        """Divide by lists, as far as there are any, and take FedBN's small parts of them."""
        if self.split == "fdse":
            return super().origin(found)
        lists = self.read_lists(found, "pkl", _pickled_list, "each domain is divided 80/20, class by class")
        if lists is None:
            parts = [stratified(found, k) for k in range(len(found.domain_names))]
        else:
            if len(np.unique(every := np.concatenate(lists))) < len(every):
                first = f"{found.domain_names[0]}_train.pkl"
                raise Damaged(found.root, f"has lists ({first} and so on) that name an image twice")
            parts = list(zip(lists[::2], lists[1::2]))
        origin = origin_of(len(found.files), parts)
        self.check_counts(found, origin)
        if self.scale == "fedbn":
            self._take_few(origin, [train for train, _ in parts])
        return origin

    def _take_few(self, origin: np.ndarray, lists: Sequence[np.ndarray]) -> None:
        """Keep the first training images of every list, make its last ones validation images, drop others."""
        smallest = min(map(len, lists))
        few, held_out = (int(share * smallest) for share in self.shares)
        for train in lists:
            origin[train[few:]] = UNUSED
            origin[train[len(train) - held_out :]] = VAL

    def read_lists(
        self, found: Found, ending: str, read: Callable[[Path], list[str]], otherwise: str
    ) -> list[np.ndarray] | None:
        """Return int64 indices of the images on the lists for training and for testing, domain by domain.

        None where there are no lists. What they name are paths that end in ``domain/class/file``.

        Args:
            found: the images.
            ending: of the lists' names.
            read: returns what a list names.
            otherwise: what is done without any, for a warning.
        """
        parts = ("train", "test")
        paths = [(d, found.root / f"{d}_{part}.{ending}") for d in found.domain_names for part in parts]
        missing = [path for _, path in paths if not path.is_file()]
        if missing == [path for _, path in paths]:
            name, first = type(self).__name__, missing[0].name
            warn(f"{name}: the lists ({first} and so on) are not in {found.root}, so {otherwise}")
            return None
        if missing:
            raise self.not_found(f"the list {missing[0].name}", missing[0], ALL_OR_NONE)
        places = {_list_key(file): k for k, file in enumerate(found.files)}
        lists = []
        for domain, path in paths:
            indices = []
            for line in read(path):
                k = places.get(_list_key(line))
                if k is None:
                    what = f"the image {line}, which {path} names,"
                    raise self.not_found(what, found.root, "Complete the folder")
                if found.domain_names[found.domains[k]] != domain:
                    raise Damaged(path, f"names {line}, which is not of domain {domain}")
                indices.append(k)
            lists.append(np.array(indices, np.int64))
        return lists


def _pickled_list(path: Path) -> list[str]:
    """Return what one of FedBN's lists names: it holds arrays of paths and of class names."""
    content = unpickle(path, tuple)
    with explain_decode_errors(path, _FRESH):
        paths, _ = content  # the classes are those of the folders
        return convert_content(list[str], np.asarray(paths).tolist())


def _list_key(path: str) -> str:
    """Reduce a path to domain, class and file, the folders without case and punctuation."""
    domain, name, file = ["", "", *path.replace("\\", "/").split("/")][-3:]
    return f"{plain_name(domain)}/{plain_name(name)}/{file}"


class OfficeCaltech10(_Protocols):
    """Office-Caltech10: 2,533 photographs of 10 classes in four domains (Gong et al., CVPR 2012).

    Files: root/office_caltech_10/{amazon,caltech,dslr,webcam}/class/*, and FedBN's lists
    root/office_caltech_10/{domain}_{train,test}.pkl. In FedBN's protocol (Li et al., ICLR 2021) a client
    trains on 62 images and validates on 50.
    """

    source = "https://github.com/med-air/FedBN (with lists), or https://github.com/ChristophRaab/Office_Caltech_DA_Dataset"
    published = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}  # noqa: RUF012
    order = {  # noqa: RUF012
        "fedbn": ("amazon", "caltech", "dslr", "webcam"),
        "fdse": ("caltech", "amazon", "dslr", "webcam"),
    }
    classes = (
        "back_pack",
        "bike",
        "calculator",
        "headphones",
        "keyboard",
        "laptop_computer",
        "monitor",
        "mouse",
        "mug",
        "projector",
    )
    places = ("office_caltech_10",)
    shares = (0.5, 0.4)


_DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


class DomainNet(_Protocols):
    """Ten classes of DomainNet: 22,851 images in six domains (Peng et al., ICCV 2019).

    Files: root/DomainNet/{clipart,infograph,painting,quickdraw,real,sketch}/class/*, FedBN's lists
    root/DomainNet/{domain}_{train,test}.pkl for split=fedbn, and the official lists
    root/DomainNet/{domain}_{train,test}.txt for split=fdse. In FedBN's protocol (Li et al., ICLR 2021) a
    client trains on 105 images and validates on 105.
    """

    source = "https://ai.bu.edu/M3SDA/ (FedBN's lists: https://github.com/med-air/FedBN)"
    published = {  # noqa: RUF012
        "clipart": 2629,
        "infograph": 3283,
        "painting": 3091,
        "quickdraw": 5000,
        "real": 6081,
        "sketch": 2767,
    }
    order = {"fedbn": _DOMAINNET, "fdse": _DOMAINNET}  # noqa: RUF012
    classes = (
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    )
    places = ("DomainNet", "domainnet")
    shares = (0.05, 0.05)

    def origin_of_used(self, found: Found) -> np.ndarray:
        """Use the images that the official lists name, or all where there are no lists."""
        lists = self.read_lists(found, "txt", self._official_list, "all images of the folders are used")
        if lists is None:
            return super().origin_of_used(found)
        origin = np.full(len(found.files), UNUSED, np.uint8)
        origin[np.concatenate(lists)] = TRAIN
        return origin

    def _official_list(self, path: Path) -> list[str]:
        """Return what a list names of the classes that are used."""
        with explain_decode_errors(path, _FRESH):
            text = read_packed(path).decode()
        wanted = {plain_name(name) for name in self.classes}
        lines = [line.rsplit(maxsplit=1)[0] for line in text.splitlines() if line.strip()]
        return [line for line in lines if _list_key(line).split("/")[1] in wanted]


class PACS(_Published):
    """PACS: 9,991 images of 7 classes in four domains (Li et al., ICCV 2017).

    Files: root/PACS/{art_painting,cartoon,photo,sketch}/class/*. Each domain is divided at random, 80/10/10
    for training, validation and testing, drawn from the seed (Wang et al., CVPR 2025).
    """

    source = "https://dali-dl.github.io/project_iccv2017.html"
    published = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}  # noqa: RUF012
    order = {"fdse": tuple(published)}  # noqa: RUF012
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    places = ("PACS", "PACS/kfold")
