"""Wrong datasets, models, inferences, metrics, figures and transforms: those of the documentation, each with a mistake.

Wrong algorithms and add-ons have a module of their own.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broken import first_fault, replaced
from examples import examples

DATASET = {
    "C02 images of float64": (("read_image(files[i])", "read_image(files[i]).astype(float)"), "an image is float64"),
    "C03 labels as text": (("self.classes.index(file.parts[-2])", "file.parts[-2]"), "labels are .*whole numbers"),
    "C04 a sample twice": (
        (
            'files = sorted((raw / "two_clinics").glob("*/*/*.png"))',
            'files = 2 * sorted((raw / "two_clinics").glob("*/*/*.png"))',
        ),
        "names of samples occur twice",
    ),
    "C05 NumPy's generator": (
        ("stream(site, label, patient).normal", "np.random.normal"),
        "other bytes in|NumPy's global generator",
    ),
    "C06 a shape in the order of the file": (
        ("= (3, 32, 32)", "= (32, 32, 3)"),
        r"shape \(32, 32, 3\), and `shape` says \(32, 3, 32\)",
    ),
    "a site that is no site": (
        ("    shape: ClassVar", '    site_kind = "ward"\n    shape: ClassVar'),
        "site_kind is one of hospital, .*",
    ),
    "samples that are no word": (
        ("    shape: ClassVar", '    sample_noun = "a Window"\n    shape: ClassVar'),
        "sample_noun is one word in small letters, such as image",
    ),
    "C07 an image that changes at each read": (
        (
            "return Opened(samples, lambda i: read_image(files[i]))",
            "images = [read_image(file).copy() for file in files]\n\n"
            "        def read(i: int) -> object:\n"
            "            images[i] += 1\n"
            "            return images[i]\n\n"
            "        return Opened(samples, read)",
        ),
        "an image differs when it is read again",
    ),
    "C08 no column for patients": (('"patient": [', '"person": ['), "no column patient"),
    "C09 labels from 1": (("self.classes.index(file.parts[-2])", "1 + self.classes.index(file.parts[-2])"), "a label"),
    "C10 an archive that needs pickle": (
        (
            "        files = sorted",
            '        import numpy as np\n\n        np.load(raw / "a.npz")\n        files = sorted',
        ),
        r"FileNotFoundError|allow_pickle",
    ),
    "C11 channels first": (
        ("read_image(files[i])", "read_image(files[i]).transpose(2, 0, 1)"),
        r"shape \(3, 32, 32\), and `shape` says \(32, 32, 3\)",
    ),
}
MODEL = {
    "D02 an axis too many": (
        ("classes),\n", "classes),\n            nn.Unflatten(1, (classes, 1)),\n"),
        r"\(2, 3, 1\) logits and not \(2, 3\)",
    ),
    "D03 a generator of one state": (
        ("        require_images", "        import torch\n\n        torch.manual_seed(0)\n        require_images"),
        "another seed gives the same weights",
    ),
    "D04 a count outside of buffers": (
        (
            "        return nn.Sequential(",
            "        class Counting(nn.Flatten):\n"
            "            seen = 0\n\n"
            "            def forward(self, x: object) -> object:\n"
            "                self.seen += 1\n"
            "                return super().forward(x) / self.seen\n\n"
            "        return nn.Sequential(",
            "nn.Flatten(),",
            "Counting(),",
        ),
        "the same images have other outputs the second time",
    ),
    "D05 probabilities": (("classes),\n", "classes),\n            nn.Softmax(1),\n"), "it returns probabilities"),
    "D06 batch norm of one's own": (
        (
            "        return nn.Sequential(",
            "        class Norm(nn.Module):\n"
            "            def __init__(self, channels: int) -> None:\n"
            "                import torch\n\n"
            "                super().__init__()\n"
            '                self.register_buffer("running_mean", torch.zeros(channels))\n\n'
            "            def forward(self, x: object) -> object:\n"
            "                return x - self.running_mean[:, None, None]\n\n"
            "        return nn.Sequential(",
            "nn.BatchNorm2d(self.width)",
            "Norm(self.width)",
        ),
        r"these layers have running statistics.*\['Norm'\]",
    ),
    "D07 a fixed batch": (
        ("nn.Flatten(),", "nn.Unflatten(0, (8, -1)),\n            nn.Flatten(),"),
        "RuntimeError|logits",
    ),
    "D08 a setting that build changes": (
        ("        require_images", "        self.width = 8\n        require_images"),
        "it sets self.width, and a plug-in never changes",
    ),
    "D09 features beside logits": (
        (
            "        return nn.Sequential(",
            "        class Both(nn.Linear):\n"
            "            def forward(self, x: object) -> object:\n"
            "                return super().forward(x), x\n\n"
            "        return nn.Sequential(",
            "nn.Linear(2",
            "Both(2",
        ),
        "it returns a tuple, and must return a tensor",
    ),
    "D10 a shape refused without words": (
        ("        require_images(self, shape, least=4)\n", "        assert shape[-1] > 96\n"),
        "end in AssertionError: ; raise UserError for inputs that it cannot take",
    ),
}
HEAD = "        with batch_norm_by(model, blended):\n"
INFERENCE = {
    "E02 classes in the place of logits": (("yield model", "yield lambda x: model(x).argmax(1)"), "logits of shape"),
    "E03 state across sites": (
        (
            "class Blend",
            "SEEN: list[object] = []\n\n\nclass Blend",
            "                mean, variance = moments(x)\n",
            "                mean, variance = moments(x)\n                SEEN.append(mean)\n"
            "                mean = SEEN[0]\n",
        ),
        "it changes SEEN of its file",
    ),
    "E04 NumPy's generator": (
        ("yield model", "import numpy as np\n\n            yield lambda x: model(x) * np.random.uniform()"),
        "NumPy's global generator",
    ),
    "E05 a last batch that is left out": (("yield model", "yield lambda x: model(x)[:3]"), "logits of shape"),
    "E06 probabilities": (("yield model", "yield lambda x: model(x).softmax(1)"), "it answers with probabilities"),
    "E07 no context manager": (
        ("    @contextmanager\n", ""),
        "on_site must be a context manager: decorate it with @contextmanager",
    ),
    "E08 gradients that are not recorded": (
        ("yield model", "model(next(batches())).sum().backward()\n            yield model"),
        "say `gradients = True`",
    ),
    "E11 a misspelt hook": (("def on_site(", "def on_sites("), r"Blend.on_sites: .*did you mean 'on_site'\?"),
    "E12 a variance that vectors do not have": (
        (
            "                mean, variance = moments(x)\n",
            "                mean, variance = moments(x)\n"
            "                variance = variance / (x[0, 0].numel() - 1)\n",
        ),
        "not finite|ZeroDivisionError|add up to 1",
    ),
    "a method without effect": (("yield model", "pass\n        yield model"), "its predictions are the network's own"),
}
METRIC = {
    "F02 an array in the place of a number": (
        ("def per_sample", "def value", "min=self.floor))", "min=self.floor))[:1]"),
        "its value is a ndarray and no float",
    ),
    "F03 an argument that changes": (
        ("        return -np", "        label.sort()\n        return -np"),
        "changes its arguments",
    ),
    "F04 an infinite value": ((".clip(min=self.floor)", ""), "its value is infinite"),
    "F05 percent below 0": (
        ("percent = False", "percent = True", "return -np", "return np"),
        r"its value is -.*, and `percent`",
    ),
    "F06 the wrong direction": (("higher_is_better = False", "higher_is_better = True"), "see higher_is_better"),
    "F07 NumPy's generator": (("return -np", "return np.random.normal() - np"), "NumPy's global generator"),
    "F08 no title": (('    title = "Log loss"\n', ""), "it needs a title"),
    "F09 a misspelt hook": (
        ("def per_sample", "def per_samples"),
        r"LogLoss.per_samples: .*did you mean 'per_sample'\?",
    ),
    "probabilities that are read though classes decide": (
        ("higher_is_better = False", "higher_is_better = False\n    decides = True"),
        "from the most probable classes: see decides",
    ),
}
FIGURE = {
    "G02 bytes": (
        ("(WIDTH, 0.8 + 0.3 * len(means)), paint)", "(WIDTH, 0.8 + 0.3 * len(means)), paint).encode()"),
        "must return the SVG as text",
    ),
    "G03 NumPy's generator": (
        ("list(means), color", "list(means + __import__('numpy').random.normal(size=len(means))), color"),
        "other bytes the second time|NumPy's global generator",
    ),
    "G04 results that change": (
        ("        scores = results.scores\n", "        scores = results.scores\n        scores['value'] *= 2\n"),
        "it changes the tables of `results`",
    ),
    "G05 no answer where nothing is": (
        (
            "        if scores.empty:\n            return self.nothing(results)\n",
            '        scores.groupby("role").groups["internal"]\n',
        ),
        "KeyError: 'internal'",
    ),
    "G06 markup by hand": (
        (
            "        return self.picture(results, (WIDTH, 0.8 + 0.3 * len(means)), paint)",
            "        return f\"<svg role='img'><title>{self.title}</title><text>{means.index[0]}</text></svg>\"",
        ),
        "no XML .*escape names",
    ),
    "G08 settings of matplotlib": (
        (
            "        scores = results.scores\n",
            "        scores = results.scores\n        __import__('matplotlib').rcParams['font.size'] = 3\n",
        ),
        "it changes matplotlib.rcParams",
    ),
}
TRANSFORM = {
    "H02 another type": (
        (".to(x)\n", ".to(x).double()\n"),
        "it makes torch.float64 of torch.float32: return the dtype",
    ),
    "H03 NumPy's generator": (("rng.uniform(", "__import__('numpy').random.uniform("), "draw from the generator|NumPy"),
    "H04 an argument that changes": (
        ("return x * ", "return x.mul_(", ".to(x)\n", ".to(x))\n"),
        "it changes its argument",
    ),
    "H05 draws that always act": (('when = "train"', 'when = "always"'), "it always acts, and draws"),
    "H06 another word": (('when = "train"', 'when = "training"'), "`when` is 'training'"),
    "H07 a channel less": (
        (".to(x)\n", ".to(x)[:, :, :, :]\n", "return x *", "return x[:, :1] *"),
        "it makes the shape",
    ),
    "H08 torch's generator": (("torch.from_numpy(factor).to(x)", "torch.rand(1)"), "draw from the generator"),
    "H09 a misspelt hook": (("def apply", "def aply"), r"Brightness.aply: .*did you mean 'apply'\?"),
    "H10 three channels from one": (("return x *", "return x.expand(-1, 3, -1, -1) *"), "it makes the shape"),
    "a step without effect": (("return x *", "return x.clone()\n        return x *"), "no image changes"),
}
PLUGINS = {
    "two_clinics": DATASET,
    "small_cnn": MODEL,
    "blend": INFERENCE,
    "log_loss": METRIC,
    "worst_sites": FIGURE,
    "brightness": TRANSFORM,
}


def source(name: str) -> str:
    """Return the code of a plug-in of the documentation."""
    return next(example.code for example in examples() if example.name == name)


# `-k NAME` chooses the tests of a plug-in of the reader: no id here has the name of one
@pytest.mark.parametrize("name", PLUGINS, ids=[str(number) for number in range(len(PLUGINS))])
def test_the_contract_finds_a_plugin_without_a_docstring(name: str, tmp_path: Path) -> None:
    """Methods have none in these plug-ins, so that the first that is indented is that of the class."""
    bare, count = re.subn(r'    """.*?"""\n\n', "", source(name), count=1, flags=re.DOTALL)
    assert count == 1
    assert "it needs its own docstring" in first_fault(tmp_path, bare)


@pytest.mark.parametrize(
    ("name", "mistake"), [pytest.param(name, mistake, id=mistake) for name in PLUGINS for mistake in PLUGINS[name]]
)
def test_the_contract_finds_a_wrong_plugin(name: str, mistake: str, tmp_path: Path) -> None:
    changes, words = PLUGINS[name][mistake]
    fault = first_fault(tmp_path, replaced(source(name), *changes))
    assert re.search(words, fault), fault


RIGHT = {
    "E10 a generator that is set: the engine forks it for each site": (
        "blend",
        (HEAD, f"        torch.manual_seed(0)\n{HEAD}"),
    ),
    "F10 another formula: no general rule knows it": (
        "log_loss",
        ("return -np.log(probability", "return -np.log(0.5 + 0.5 * probability"),
    ),
    "F11 a division by zero that is NaN": (
        "log_loss",
        ("        return -np", "        np.float64(0) / np.float64(len(label) - 1)\n        return -np"),
    ),
}


@pytest.mark.parametrize("change", RIGHT)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_the_contract_accepts_a_right_plugin(change: str, tmp_path: Path) -> None:
    name, changes = RIGHT[change]
    assert first_fault(tmp_path, replaced(source(name), *changes)) == ""
