"""A trained run, opened from its folder: settings, rounds, networks and predictions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..core.errors import UserError
from ..data.samples import MappedSamples, at_site, site_statistics
from ..engine.prediction import adapted_probabilities
from ..inferences import Inference, Site
from ..io.checksums import require
from ..io.paths import Paths, RunFiles
from ..io.shipped import inside, project_of
from ..jobs.predict import Network, load_run, site_knowledge
from ..jobs.record import read_manifest, read_rounds
from ..jobs.run_images import RunImages
from ..transforms import Transform, greys_after
from .federation import Predictor, require_network, require_site

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn


def open_run(run: str | Path, *, device: torch.device | str = "cpu") -> TrainedRun:
    """Open a trained run.

    Parameters
    ----------
    run : the run's folder, such as `results/runs/ID`; or its id, where the current folder is that of the project
    device : device on which the run predicts

    Returns
    -------
    The run. Its files were read against their recorded checksums; its prepared data are needed by some methods only.
    Plug-ins of its project are found.

    Raises
    ------
    UserError
        Where the folder holds no trained run, or a file is damaged. The message is one line for each file.

    Examples
    --------
    >>> import fedshift
    >>> study = fedshift.load_study("my-study")
    >>> run = fedshift.open_run(f"results/runs/{next(iter(study.runs))}")
    >>> run.spec["algorithm"]["name"], run.spec["bn"]
    ('fedavg', 'local')
    >>> fedshift.open_run("results/runs/lost")
    Traceback (most recent call last):
    fedshift.core.errors.UserError: results/runs/lost: no such run, or it is not trained; see results/runs...
    """
    path = Path(run)
    folder = path if path.is_dir() or len(path.parts) > 1 else Paths().run(str(run))
    require(RunFiles(folder).trained)
    return TrainedRun(folder, torch.device(device))


class TrainedRun(Predictor):
    """A trained run: its settings, how its training went, and its networks. `open_run` opens one.

    `predict` and `evaluate` take images (n, height, width, channels), uint8, in the size of the run, or vectors
    (n, features), and apply the run's transforms. The test images of a site, in the order of `images`, get the
    probabilities that the workflow wrote. A transform that takes statistics of a site takes them of the given images at
    a site outside, and of the training images at an internal one.

    Parameters
    ----------
    folder : folder of the run
    device : device on which it predicts

    Attributes
    ----------
    folder : folder of the run
    run : the run, with its plug-ins as objects
    manifest : provenance as plain data: versions, digests, machine, seconds, selected round

    Raises
    ------
    UserError
        Where a file is missing or cannot be read.

    Examples
    --------
    >>> import fedshift
    >>> study = fedshift.load_study("my-study")
    >>> run = study.open_run(next(iter(study.runs)))
    >>> run.sites
    {'north': 'internal', 'south': 'internal', 'far': 'external'}
    >>> run.rounds[["round", "site", "split"]].head(2).values.tolist()
    [[1, 'north', 'train'], [1, 'south', 'train']]
    >>> x, y = run.images("far")
    >>> x.shape, x.dtype, run.predict(x, inference="tsmobn").shape
    ((40, 8, 8, 3), dtype('uint8'), (40, 2))
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.device = device
        project = project_of(folder)
        # Absolute, since files are read later, when another folder may be the current one.
        self.folder = folder.absolute()
        # Messages name the folder as its reader does.
        here = folder if project in (Path(), Path.cwd()) else self.folder
        with inside(project):
            self.run = load_run(here)
            # Computed here and kept: those of own images depend on the current folder.
            _ = self.run.id, self.run.data.id, self.run.partition_id
        self.manifest: dict[str, Any] = read_manifest(RunFiles(folder).manifest)

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.folder)!r})"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    @property
    def spec(self) -> dict[str, Any]:
        """All settings of the run, defaults included, as plain data."""
        return self.run.spec

    @property
    def sites(self) -> dict[str, str]:
        """The role of each site, `internal` or `external`, in the order of the study."""
        partition = self.run.partition
        return dict.fromkeys(partition.internal, "internal") | dict.fromkeys(partition.external, "external")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of predictions."""
        return self.run.data.dataset.classes

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """A row for each round, site and split: loss, accuracy, seconds, floats_down, floats_up and others."""
        return read_rounds(RunFiles(self.folder).rounds)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one stored image as (channels, height, width), or of a vector as (features,)."""
        return tuple(self.run.data.shape or self._prepared.prepared.shape)

    def model(self, site: str | None = None) -> nn.Module:
        """Return a copy of a network of the run, in evaluation mode, on the run's device.

        Parameters
        ----------
        site : an internal site, whose own tensors or personal network are then used where it has any; an external one,
            or by default none, for the network that the algorithm gives to sites outside

        Returns
        -------
        A module from a batch of transformed inputs, float32 (batch, channels, height, width) or (batch, features), to
        logits (batch, classes). Where several networks predict the site together, it holds all of them.

        Raises
        ------
        UserError
            For an unknown site, for a site outside where clients share no model, and for tensors that do not fit.

        Examples
        --------
        >>> import fedshift, torch
        >>> study = fedshift.load_study("my-study")
        >>> run = study.open_run(next(iter(study.runs)))
        >>> run.model("north")(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 2])
        >>> north, south = (run.model(site).state_dict() for site in ("north", "south"))
        >>> [name for name in north if not north[name].equal(south[name])]  # batch norm stays at home
        ['2.weight', '2.bias', '2.running_mean', '2.running_var']
        """
        return copy.deepcopy(self._at(self._place(site))).eval()

    def images(self, site: str, split: str = "test") -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels of a site, from the prepared data of the project.

        Parameters
        ----------
        site : a site of the run
        split : `test`; or `train` or `val`, which internal sites have

        Returns
        -------
        Images (n, height, width, channels), uint8, or vectors (n, features), float32, as they are stored; and their
        labels (n,), int64.

        Raises
        ------
        UserError
            For an unknown site, for a split that the site does not have, and where the data are not prepared here.

        Examples
        --------
        >>> import fedshift
        >>> study = fedshift.load_study("my-study")
        >>> x, y = study.open_run(next(iter(study.runs))).images("north", "val")
        >>> x.shape, y.tolist()
        ((4, 8, 8, 3), [0, 1, 0, 1])
        """
        require_site(site, self.sites)
        images = self._prepared
        parts = images.by_site(split, [site])
        if site not in parts:
            raise UserError(f"site {site!r}", f"has no images of the split {split!r}", "see the partition of the study")
        rows = images.prepared.rows(parts[site])
        return np.asarray(images.prepared.images[rows]), np.asarray(images.labels[rows], dtype=np.int64)

    def _predicted(self, x: Any, y: Any, inference: Inference, site: str | None) -> tuple[np.ndarray, np.ndarray]:
        task = self.run.data.task
        if not task.has_probabilities:
            fault = f"was trained for {task.name}, and only class probabilities of images are predicted here"
            remedy = "take its network, fedshift.open_run(RUN).model(), or predict image files: fedshift apply"
            raise UserError(f"run {self.run.id}", fault, remedy)
        label = np.zeros(len(x), dtype=np.int64) if y is None else self._labels(y, len(x))
        stored = self._stored(x)
        place = self._place(site)
        self.run.partition.require_client(inference.client, "inference")
        knowledge = Site(greys=greys_after(self.run.transforms, self.shape))
        # Before the network of this site is loaded, since all others are loaded into the same module and asked.
        if inference.asks:
            knowledge = site_knowledge(inference, self._network, self._prepared)(place)
        model = self._at(inference.network_at(place))
        opened = partial(MappedSamples, stored, np.arange(len(stored)), label, device=self.device)
        samples = opened(self._transforms(opened, place))
        val = opened(())
        if inference.uses_labels:  # of a site that is not internal there are none
            images = self._prepared
            val = images.samples(images.by_site("val", [place]).get(place, images.partition[:0]))
        exact = self.run.training.deterministic
        return adapted_probabilities(
            model, samples, val, inference, site or "outside", self.device, known=knowledge, deterministic=exact
        )

    def _labels(self, y: Any, images: int) -> np.ndarray:
        """Return labels as int64 (n,). Raises UserError unless `y` holds one class number of the run for each image."""
        label = np.asarray(y)
        last = len(self.classes) - 1
        is_whole = label.dtype.kind in "iu" and label.shape == (images,)
        if not is_whole or (len(label) and not 0 <= int(label.min()) <= int(label.max()) <= last):
            problem = f"must be a class number, 0 to {last}, for each of {images} images"
            raise UserError("y", problem, "give one integer an image, as TrainedRun.images does")
        return label

    def _stored(self, x: Any) -> np.ndarray:
        """Return `x` as the run's data are stored: images, uint8, or vectors, float32.

        Raises UserError for another shape or type.
        """
        channels, *space = self.shape
        wanted = (*space, channels)
        kind = "uint8" if space else "float32"
        given = np.asarray(x)
        stored = given.astype(np.float32) if given.dtype.kind == "f" and not space else given
        if stored.shape[1:] != wanted or str(stored.dtype) != kind or not len(stored):
            problem = f"holds {given.dtype} {given.shape}, and this run takes {kind} (n, {', '.join(map(str, wanted))})"
            raise UserError("x", problem, "bring images to this size; fedshift apply does so with image files")
        return stored

    def _transforms(self, opened: partial[MappedSamples], place: str) -> Sequence[Transform]:
        """Return the run's transforms, fitted to a site.

        `place` is an internal site, whose training images give the statistics, or '' for a site outside: then the
        images that `opened` reads give the statistics.
        """
        transforms = self.run.transforms
        if place and any(transform.per_site for transform in transforms):
            return at_site(transforms, self._prepared.statistics(place))
        return at_site(transforms, site_statistics(transforms, opened))

    def _place(self, site: str | None) -> str:
        """Return `site` if it is internal, and '' for a site outside, or None. Raises UserError for an unknown site."""
        if site is not None:
            require_site(site, self.sites)
        return site if site in self.run.partition.internal else ""

    def _at(self, client: str) -> nn.Module:
        """Return the network of a client, or the global one for ''. Raises UserError if clients share no network."""
        require_network(client, self.run.algorithm.collaboration, self.run.partition.internal)
        return self._network.at(client)

    @functools.cached_property
    def _network(self) -> Network:
        return Network(self.run, self.folder, self.shape, self.device)

    @functools.cached_property
    def _prepared(self) -> RunImages:
        """The prepared data and the partition of the run. Raises UserError where they are not in this project."""
        paths = Paths(project_of(self.folder))
        require([*paths.data_files(self.run.data.id).written, paths.partition(self.run.partition_id)])
        return RunImages(self.run, paths, self.device)
