"""`ArrayFiles`: samples in files of NumPy's format."""

from pathlib import Path

from rayfl.data.dataset import Dataset
from rayfl.data.readers.samples import Form, SampleData, Samples, dataset_of
from rayfl.data.readers.tables import read_arrays
from rayfl.errors import Missing
from rayfl.system.files import explain_decode_errors


class ArrayFiles(SampleData):
    """Samples of your own in files: an .npz file, or a folder of .npy files; of tables see :class:`Table`.

    Inputs are images (uint8 [N, C, H, W]), floats [N, ...] or token ids (whole numbers), labels whole numbers
    or texts. The files of a folder (x.npy, y.npy and so on) are mapped into memory where there is one folder
    alone. Files with pickled objects are refused. With users, a client per user (or several) is the default
    partition.
    """

    root: str | None = None
    """Folder that the names of the files are relative to; the current one if not given."""
    train: str | None = None
    """File or folder with the training samples, such as train.npz; it must be given."""
    test: str | None = None
    """File or folder with the test samples; if not given, a part of the training samples is for testing."""
    val: str | None = None
    """File or folder with the validation samples, if there are any."""
    x: str = "x"
    """Name of the inputs."""
    y: str = "y"
    """Name of the targets."""
    x_test: str | None = None
    """Name of the inputs for testing, where it is another one; without data.test it is in the same file."""
    y_test: str | None = None
    """Name of the targets for testing, where it is another one."""
    users: str | None = None
    """Name of the array or column that has the user of each sample, as numbers or texts."""
    domains: str | None = None
    """Name of the array or column that has the domain of each sample, as numbers or texts."""
    mean: list[float] | None = None
    """Per channel, of images scaled to [0, 1]; 0 by default."""
    std: list[float] | None = None
    """Per channel, of images scaled to [0, 1]; 1 by default."""

    def load(self) -> Dataset:
        """Read the files."""
        if self.train is None:
            raise Missing("data.train", "is not given: ArrayFiles needs a file with training samples")
        test = self.test or (self.train if self.x_test else None)
        tests, val = test and self._part(test, "_test"), self.val and self._part(self.val)
        form = Form("ArrayFiles", self.names, self.test_fraction, self.mean, self.std, task=self.task)
        return dataset_of(self._part(self.train), tests or None, form, val or None)

    def _part(self, name: str, end: str = "") -> Samples:
        """Return what a file has; arrays for testing may have names of their own."""
        path = Path(self.root or "").expanduser() / Path(name).expanduser()
        own = {key: getattr(self, f"{key}{end}", None) or getattr(self, key) for key in ("x", "y")}
        groups = [each for each in (self.users, self.domains) if each is not None]
        with explain_decode_errors(path, "write it again"):
            found = read_arrays(path, [own["x"], own["y"], *groups])
        of = (found[name] if name else None for name in (self.users, self.domains))
        return Samples(found[own["x"]], found[own["y"]], *of)
