"""The five sets of digits of FedBN: MNIST, SVHN, USPS, SynthDigits and MNIST-M."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ..core.errors import UserError
from ..io.download import USE_MIRROR, Source, fetch
from . import _digit_sites as sites
from . import _morpho as morpho
from ._base import Card, Dataset, Opened, joined

MORPHO = "morpho"  # a separate folder, because its files have the names of MNIST's


class DigitsFive(Dataset):
    """The sites mnist, svhn, usps, synth and mnistm each have the training and test images of their set, 28x28 RGB.

    SVHN, USPS and SynthDigits are resized (bilinear, as in Pillow), grey becomes three equal channels, and MNIST-M of
    32x32 is cropped to its middle. The mirror directory holds the files, or has a folder for each site: usps, mnist_m,
    ...
    """

    site_kind = "domain"
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"clients", "seed"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, 28, 28)
    classes: tuple[str, ...] = Field(
        tuple("0123456789"), min_length=10, max_length=10, description="names of the labels 0 to 9"
    )
    complete: bool = Field(
        True,
        description="whether all official files are needed; if false, the parts of each site that the mirror has are "
        "used, without checksum",
    )
    synth: Literal["files", "rendered"] = Field(
        "files", description="SynthDigits from its files, or printed digits drawn by fedshift instead"
    )
    drawn: int = Field(10_000, ge=100, le=500_000, description="number of images with synth: rendered")
    mnistm: Literal["files", "composed"] = Field(
        "files", description="MNIST-M from its files, or MNIST on textures drawn by fedshift instead"
    )
    morpho: Literal["none", "files", "generated"] = Field(
        "none",
        description="source of the additional sites morpho_global and morpho_local, as in the dataset morpho_mnist",
    )
    clients: int = Field(
        1,
        ge=1,
        le=10,
        description="number of sites made of each set; if above 1, each is a tenth of the set: mnist1, ...",
    )
    seed: int = Field(0, ge=0, description="seed of the division into tenths")
    images: int = Field(
        40, ge=10, description="training images of each class in the miniature, which has a quarter as many test images"
    )

    def card(self) -> Card:
        return Card(
            title="Digits-Five",
            version="as in FedBN",
            source=f"MNIST: http://yann.lecun.com/exdb/mnist/; SVHN: {sites.SVHN}; USPS: {sites.USPS}; SynthDigits and "
            "MNIST-M: http://yaroslav.ganin.net/",
            licence="MNIST: CC BY-SA 3.0; SVHN: non-commercial use only; USPS, SynthDigits, MNIST-M: none stated",
            citation="LeCun et al. 1998 (MNIST), Netzer et al. 2011 (SVHN), Hull 1994 (USPS), Ganin and Lempitsky 2015 "
            "(SynthDigits, MNIST-M); together as in Li et al. 2021 (ICLR, FedBN)",
            caveat=" ".join(self._caveats()),
        )

    def _caveats(self) -> Iterator[str]:
        yield (
            "SVHN's digits of one photograph follow one another, and no file says which belong together: a random "
            "split puts digits of one house number into training and test data. MNIST-M shows MNIST's digits: the "
            "test digits of one site may be training digits of the other."
        )
        if not self.complete:
            yield "Only parts of the official files, without checksum: not comparable with published figures."
        if self.synth == "rendered":
            yield f"Instead of SynthDigits: {self.drawn:,} printed digits drawn by fedshift, with other fonts."
        if self.mnistm == "composed":
            yield "Instead of MNIST-M: MNIST composed in the same way, but on drawn textures, not on photographs."
        if self.morpho != "none":
            yield "Morpho-MNIST shows digits of MNIST's test part; the site mnist trains on most of them."
        if self.morpho == "generated":
            yield f"Morpho-MNIST: {morpho.DRAWN}"

    def _files(self) -> dict[str, list[tuple[Source, ...]]]:
        """Return the files to obtain, by site and part; without address and checksum unless all are needed."""
        made = {"synth": self.synth == "rendered", "mnistm": self.mnistm == "composed"}
        return {
            site: [tuple(s if self.complete else sites.unchecked(s) for s in part) for part in parts]
            for site, parts in sites.FILES.items()
            if not made.get(site)
        }

    def sources(self) -> Sequence[Source]:
        more = morpho.sources() if self.morpho == "files" else ()
        return [*(source for parts in self._files().values() for part in parts for source in part), *more]

    def download(self, raw: Path, mirror: Path | None) -> None:
        for site, parts in self._files().items():
            if not self.complete:
                present = [part for part in parts if all(sites.at_hand(raw, mirror, site, s.filename) for s in part)]
                if not present:
                    files = " or ".join(source.filename for part in parts for source in part[:1])
                    problem = f"has neither training nor test images of {site}: {files}"
                    raise UserError(mirror or "mirror", problem, USE_MIRROR)
                parts = present
            for source in (s for part in parts for s in part):
                path = fetch(source, raw, sites.place(mirror, site, source.filename))
                if self.complete:
                    sites.check_count(path)
        if self.synth == "rendered":
            sites.drawn(raw, self.drawn)
        if self.mnistm == "composed":
            sites.composed(raw)
        if self.morpho == "files":
            morpho.obtain(raw / MORPHO, mirror, "t10k")
        if self.morpho == "generated":
            self._perturb(raw)

    def _perturb(self, raw: Path) -> None:
        morpho.generate(raw / MORPHO, *sites.read(raw, "mnist", "test"), "t10k")

    def open(self, raw: Path) -> Opened:
        found = []
        for site in sites.SITES:
            parts = [part for part in sites.PARTS if self.complete or sites.is_there(raw, site, part)]
            if not parts:
                raise UserError(raw, f"has neither training nor test images of {site}", "obtain the dataset again")
            images = joined([sites.opened(raw, site, part) for part in parts])
            if self.clients > 1:
                tenths = sites.tenths(images.samples["label"].to_numpy(), self.seed, site)
                images.samples["site"] = [f"{site}{tenth + 1}" for tenth in tenths]
            found.append(images)
        five = joined(found)
        if self.clients > 1:
            used = {f"{site}{k + 1}" for site in sites.SITES for k in range(self.clients)}
            samples = five.samples[five.samples["site"].isin(used)]
            rows = samples.index.to_numpy()
            whole = five.image
            five = Opened(samples.reset_index(drop=True), lambda i: whole(rows[i]))
        if self.morpho == "none":
            return five
        more = morpho.opened(raw / MORPHO, "t10k")
        return joined([five, Opened(more.samples.drop(columns="base"), more.image)])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits: printed ones for synth, else like a digital display; sites differ in colours."""
        sites.miniature(raw, self.images)
        if self.morpho != "none":
            self._perturb(raw)
