"""Mistakes of authors that no run shows: a loss that is a sum, a mask that stays behind, a copy that remembers.

Each row of the table is a right plug-in, some text of it that is replaced, and words of what the contract finds first.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broken import first_fault, replaced
from rotation import of_day
from test_broken_algorithms import ADDON, ALGORITHM, BEGIN, LAST, LOGITS
from test_broken_plugins import source

HEAD = '''"""A plug-in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.metrics import Metric
from fedshift.transforms import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


'''
FLIP = f'''{HEAD}class Turned(Transform):
    """Turn each training image left to right with probability one half."""

    when = "train"
    mask = "moves"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        turned = torch.from_numpy(rng.random(len(x)) < 0.5)
        return torch.where(turned[:, None, None, None], x.flip(-1), x)
'''
INVERT = f'''{HEAD}class Invert(Transform):
    """Give each image the complement of its grey levels."""

    mask = "stays"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return 255 - x
'''
MIRROR = f'''{HEAD}class Mirrored(Transform):
    """Turn each stored image left to right."""

    when = "prepare"
    mask = "moves"

    def prepare(self, image: np.ndarray) -> np.ndarray:
        return image[:, ::-1].copy()

    def prepare_mask(self, mask: np.ndarray) -> np.ndarray:
        return mask[:, ::-1].copy()
'''
CENTRED = f'''{HEAD}class Centred(Transform):
    """Subtract the mean grey level of a site from each of its images."""

    per_site = True
    level: float = Field(0.0, description="grey level that is subtracted")

    def fit(self, batches: Iterable[Tensor]) -> Tensor:
        total, n = 0, 0
        for x in batches:
            total = total + x.mean((1, 2, 3)).sum()
            n += len(x)
        return (total / n).reshape(1)

    def fitted(self, own: Tensor, clients: Sequence[Tensor]) -> tuple[Transform, ...]:
        return (Centred(level=float(own)),)

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return x - self.level
'''
HITS = f'''{HEAD}class Hits(Metric):
    """Share of samples whose class has the largest probability."""

    title = "Hits"

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        return float((probability.argmax(1) == label).mean())

    def influence(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        right = (probability.argmax(1) == label) * 1.0
        return (right - right.mean()) / len(label)
'''
SOURCES = {"algorithm": ALGORITHM, "addon": ADDON, "flip": FLIP, "invert": INVERT, "mirror": MIRROR}
SOURCES |= {"centred": CENTRED, "hits": HITS}


def _hook(signature: str, *body: str) -> tuple[str, str]:
    """Return the change that gives the algorithm one more method."""
    lines = [f"    def {signature}:", *(f"        {line}" for line in body)]
    return LAST, "\n".join([f"{LAST}", *lines, ""])


def _after(text: str, *lines: str) -> tuple[str, str]:
    """Return the change that puts lines of a method behind a text."""
    return text, text + "".join(f"        {line}\n" for line in lines)


def _before(text: str, *lines: str) -> tuple[str, str]:
    return text, "".join(f"        {line}\n" for line in lines) + text


PAPER = '    paper = "control"\n'
REPORT = '        return {"shared": local.shared, "square": change.square().sum().reshape(1)}\n'
OPENED = "return Opened(samples, lambda i: read_image(files[i]))"
FILES = 'files = sorted((raw / "two_clinics").glob("*/*/*.png"))'
NETWORK = "        return nn.Sequential(\n"
PICTURE = "        return self.picture(results"
TABLES = "        scores = results.scores\n"
DRAWN = "(WIDTH, 0.8 + 0.3 * len(means)), paint)"
LAYER = "        model.more = torch.nn.Linear(2, 2, dtype=torch.float64)"
MISTAKES: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "algorithm": {
        "weights of a round that sum to 0.7": (
            _hook("round_weights(self, server, weights)", "return [0.7 * w for w in weights]"),
            r"round_weights: gives weights whose sum is 0.7; divide",
        ),
        "weights that sum to 2": (_hook("weights(self, shares)", "return [2 * s for s in shares]"), "sum is 2;"),
        "a weight of one client": (
            _hook("round_weights(self, server, weights)", "return weights[:1]"),
            "gives 1 weights; return one for each of the 3",
        ),
        "a layer that is not there stays": (
            _hook("stays(self, model)", "return ['head.weight']"),
            "names 'head.weight', which is no parameter",
        ),
        "an unknown layer policy": ((PAPER, f'{PAPER}    layers = "heads_home"\n'), "did you mean 'head_home'"),
        "a policy without a reason": ((PAPER, f'{PAPER}    policies = ("aggregated",)\n'), "`why` must say"),
        "a report of more bytes than are counted": (
            (REPORT, REPORT.replace("sum()", "sum().double()")),
            r"more bytes than the ledger counts.*to\(local.shared\)",
        ),
        "a report that one client alone has": (
            (REPORT, f'{REPORT.rstrip()} | ({{"more": change}} if local.client == "a" else {{}})\n'),
            r"at some clients only.*\['more'\]",
        ),
        "a report of several shapes": (
            (REPORT, f'{REPORT.rstrip()} | {{"more": change[: 1 if local.client == "b" else None]}}\n'),
            r"or their shapes.*\['more'\]",
        ),
        "tensors of clients that none reports": (
            (PAPER, f'{PAPER}    per_client = frozenset({{"squares"}})\n'),
            r"no `report` returns: \['squares'\]",
        ),
        "a loss without weights of classes": (
            _hook(
                "loss(self, local, x, y)",
                "import torch",
                "logits = local.model(x)",
                "return torch.nn.functional.cross_entropy(logits, y), logits",
            ),
            "ignores training.class_weights; make it with `class_loss`",
        ),
        "a loss that is a sum": (
            _hook(
                "loss(self, local, x, y)",
                "from fedshift.algorithms import class_loss",
                "logits = local.model(x)",
                "return class_loss(local, logits, y, 'none').sum(), logits",
            ),
            r"2.0\d times the loss.*return the mean over images",
        ),
        "evaluation mode that is left on": (
            _hook("loss(self, local, x, y)", "local.model.eval()", "return local.objective(local, x, y)"),
            "loss leaves these parts of the network in another mode",
        ),
        "a layer that is left frozen": (
            _hook(
                "loss(self, local, x, y)",
                "next(local.model.parameters()).requires_grad_(False)",
                "return local.objective(local, x, y)",
            ),
            r"in another mode.*\['0.weight'\]",
        ),
        "state of a client that is a view": ((BEGIN, BEGIN.replace(".add_(", " = (")), "is a view of the network"),
        "state of the server that is a view": (
            ('server.state["m"].copy_(change)', 'server.state["m"] = server.params'),
            r"'m' of the state is a view of the network.*clone\(\) it",
        ),
        "state that holds a graph": (
            _hook(
                "loss(self, local, x, y)",
                "loss, logits = local.objective(local, x, y)",
                'local.state["l"] = loss.reshape(1)',
                "return loss, logits",
            ),
            r"'l' of the state holds the graph.*detach\(\) it",
        ),
        "a personal network that changes the network": (
            _hook("personal(self, local)", "return local.state_vector.mul_(0.999)"),
            "personal changes the network.*work on a clone",
        ),
        "a broadcast that changes the network": (
            _hook("broadcast(self, server)", "server.params.mul_(0.999)", "return {}"),
            "broadcast changes the network",
        ),
        "an argument that remembers": (
            (
                "def begin(self, local: Local) -> None",
                "def begin(self, local: Local, seen: list = []) -> None",
                *_after(BEGIN, "seen.append(1)", "local.params.mul_(1 + 1e-6 * len(seen))"),
            ),
            "it changes begin of its file",
        ),
        "a helper that remembers": (
            (
                "class Extrapolated",
                "class _Memo:\n    n = 0\n\n\nclass Extrapolated",
                *_after(BEGIN, "_Memo.n += 1", "local.params.mul_(1 + 1e-6 * _Memo.n)"),
            ),
            "it changes _Memo.n of its file",
        ),
        "the clock": (
            _after(LAST, "import time", "server.params.mul_(1 + 1e-9 * (time.time() % 1))"),
            "calls time.time: it differs each time",
        ),
        "a seed of one's own": (
            _after(LAST, "import numpy as np", "server.params.mul_(1 + 1e-6 * np.random.default_rng(0).random())"),
            r"line \d+ calls np.random.default_rng: its seed is not that of the run",
        ),
        "a hash of text": (
            _after(BEGIN, "local.params.mul_(1 + 1e-3 * (hash(local.client) % 7))"),
            "calls hash: the hash of a text differs between processes",
        ),
        "a device that may not be there": (_after(BEGIN, "local.params.cuda()"), r"calls local.params.cuda: a mach"),
        "a generator that forgets the clock": (
            _after(BEGIN, "import os", "local.params.mul_(1 + 1e-9 * len(os.times()) * os.times().elapsed)"),
            "other bits the second time",
        ),
        "Python's generator": (
            _after(BEGIN, "import random", "local.params.mul_(1 + 1e-6 * random.random())"),
            "it changes Python's global generator: draw from",
        ),
        "gradients that are switched off": (
            _after(LAST, "import torch", "torch.set_grad_enabled(False)"),
            "it changes torch's recording of gradients: set it back",
        ),
        "another type of floats": (
            _after(LAST, "import torch", "torch.set_default_dtype(torch.float64)"),
            "it changes torch's default type of floats",
        ),
        "a file in the working folder": (
            _after(LAST, "from pathlib import Path", "Path('debug.txt').write_text('x')"),
            "it writes debug.txt into the working folder",
        ),
    },
    "addon": {
        "layers of one seed": (
            (
                "    def loss(",
                f"    def extend(self, model):\n        import torch\n\n        torch.random.set_rng_state("
                f"torch.Generator().get_state())\n{LAYER}\n        return model\n\n    def loss(",
            ),
            "with another seed its layers start alike",
        ),
        "an add-on that leaves evaluation mode on": (_before(LOGITS, "local.model.eval()"), "in another mode"),
        "an add-on that says falsely that it weighs classes": (
            (
                PAPER,
                f"{PAPER}    weighs_classes = True\n",
                "class_loss(local, logits, y)",
                "__import__('torch').nn.functional.cross_entropy(logits, y)",
            ),
            "ignores training.class_weights",
        ),
        "an add-on whose loss is a sum": (
            ("class_loss(local, logits, y)", "class_loss(local, logits, y, 'none').sum()"),
            "times the loss",
        ),
        "noise at test time": (
            (
                "    def loss(",
                "    def extend(self, model):\n        import torch\n\n"
                "        model[6].register_forward_hook(lambda layer, x, out: out + 0.1 * torch.rand_like(out))\n"
                "        return model\n\n    def loss(",
            ),
            "torch's global generator: draw from the generator that is given",
        ),
    },
    "blend": {
        "one image in the last batch": (
            ("yield model", "yield lambda x: model(x) + 0 * model(x).std(0)"),
            "not finite if the last batch has a single image",
        ),
        "an order that is that of the files": (
            ("    order: int | None = ORDERED\n", "", "ORDERED, ", ""),
            "depend on the stored order.*declare",
        ),
        "batches that matter, though it says no": (
            ("    order: int", "    batches_matter = False\n    order: int"),
            "`batches_matter` is False; leave it out",
        ),
        "layers of dropout in training mode": (
            _before("        with batch_norm_by(model, blended):\n", "model.train()"),
            r"dropout acts: train\(\)",
        ),
        "logits of half precision": (("yield model", "yield lambda x: model(x).half()"), "are torch.float16, and must"),
        "logits of NumPy": (("yield model", "yield lambda x: model(x).numpy()"), "answers with a ndarray; yield"),
        "answers of several lengths": (
            (
                "    order: int",
                "    asks = True\n\n    def at_client(self, model, batches):\n        import torch\n\n"
                "        return torch.cat([model(x)[:, 0] for x in batches()])\n\n    order: int",
            ),
            "at_client must return a vector of one length",
        ),
    },
    "low_entropy": {
        "gradients that it does not ask for": (
            ("    gradients: ClassVar[bool] = True\n", "", "TYPE_CHECKING, ClassVar", "TYPE_CHECKING"),
            "takes gradients, and none are recorded; say `gradients = True`",
        )
    },
    "two_clinics": {
        "one buffer for all images": (
            (
                OPENED,
                "import numpy as np\n\n        buffer = np.zeros((32, 32, 3), np.uint8)\n\n        def read(i):\n"
                "            buffer[:] = read_image(files[i])\n            return buffer\n\n"
                "        return Opened(samples, read)",
            ),
            "an image changes when another is read",
        ),
        "the order of a folder": ((FILES, FILES.replace("sorted(", "list(")), "lists files in another order"),
        "a table of another length each time": (
            (FILES, f"{FILES}\n        import random\n\n        files = files[: random.randint(20, 39)]"),
            "Python's global generator",
        ),
        "one image of another shape": (
            ("read_image(files[i]))", "read_image(files[i])[: 31 if i == 3 else 32])"),
            "several shapes",
        ),
        "a place of reading that threads share": (
            (
                OPENED,
                "import time\n\n        at = [0]\n\n        def read(i):\n            at[0] = i\n"
                "            time.sleep(0.001)\n            return read_image(files[at[0]])\n\n"
                "        return Opened(samples, read)",
            ),
            "several threads read other images",
        ),
        "black images": (
            ("read_image(files[i])", "(read_image(files[i]) / 255).astype('uint8')"),
            "lie from 0 to 1, of 255",
        ),
        "labels of floats": (
            ("[self.classes.index(file.parts[-2]) for", "[float(self.classes.index(file.parts[-2])) for"),
            "labels are float64, and must be whole numbers",
        ),
        "a class without samples": (
            ('"malignant")', '"malignant", "unclear")', "(self.classes):", "(self.classes[:2]):"),
            "no sample has the class 'unclear'",
        ),
        "a further column that is not there": (
            (OPENED, OPENED[:-1] + ", further=('scanner',))"),
            r"`further` names columns that are not there: \['scanner'\]",
        ),
        "an index beside the raw files": (
            (
                "        import pandas as pd\n",
                "        import pandas as pd\n\n        (raw / 'index.txt').write_text('x')\n",
            ),
            r"open writes \['index.txt'\] into the raw folder",
        ),
        "masks of grey levels": (
            (
                OPENED,
                OPENED[:-1] + ", mask=lambda i: read_image(files[i])[:, :, 0])",
                "    def card(",
                "    has_masks: ClassVar[bool] = True\n\n    def card(",
            ),
            r"a mask holds \d+, and there are 2 classes",
        ),
    },
    "small_cnn": {
        "three channels always": (("nn.Conv2d(shape[0]", "nn.Conv2d(3"), r"shape \(1, 28, 28\) end in RuntimeError"),
        "three classes always": (("2 * self.width, classes", "2 * self.width, 3"), "for 5 classes it gives 3 logits"),
        "one size always": (
            (
                "            nn.AdaptiveAvgPool2d(1),\n",
                "",
                "2 * self.width, classes",
                "2 * self.width * 48 * 48, classes",
            ),
            r"shape \(3, 28, 28\) end in RuntimeError.*raise UserError",
        ),
        "a layer that nothing uses": (
            (
                NETWORK,
                NETWORK.replace("return", "net ="),
                "classes),\n        )",
                "classes),\n        )\n        net[0].register_module('spare', nn.Linear(2, 2))\n        return net",
            ),
            r"take no part in the forward pass.*0.spare",
        ),
        "layers in a list": (
            (
                NETWORK,
                "        class Net(nn.Module):\n            def __init__(self, *layers):\n"
                "                super().__init__()\n"
                "                self.head = layers[-1]\n                self.layers = list(layers[:-1])\n\n"
                "            def forward(self, x):\n                for layer in self.layers:\n"
                "                    x = layer.eval()(x)\n                return self.head(x)\n\n        return Net(\n",
            ),
            "a copy answers otherwise: it holds layers in a list",
        ),
        "a tensor that is no buffer": (
            (
                NETWORK,
                "        import torch\n\n        class Scale(nn.Module):\n            def __init__(self):\n"
                "                super().__init__()\n                self.s = torch.full((1,), 0.5)\n\n"
                "            def forward(self, x):\n                return x * self.s\n\n"
                f"{NETWORK}            Scale(),\n",
            ),
            r"stay behind if the network moves.*0.s",
        ),
        "a method of the first network": (
            (
                NETWORK,
                "        class Half(nn.Sequential):\n            def __init__(self, *layers):\n"
                "                super().__init__(*layers)\n"
                "                self.run = lambda x, net=self: nn.Sequential.forward(net, x)\n\n"
                "            def forward(self, x):\n                return self.run(x)\n\n        return Half(\n",
            ),
            "a copy answers otherwise",
        ),
        "an input that changes": (
            ("            nn.Conv2d(shape[0]", "            nn.ReLU(inplace=True),\n            nn.Conv2d(shape[0]"),
            "it changes its input|other outputs the second time",
        ),
        "a softmax over the batch": (("nn.Flatten(),", "nn.Flatten(),\n            nn.Softmax(0),"), "on the others"),
        "batch norm without running statistics": (
            ("nn.BatchNorm2d(self.width)", "nn.BatchNorm2d(self.width, track_running_stats=False)"),
            "depend on the others in the batch",
        ),
    },
    "hits": {
        "a sum in the place of a mean": ((".mean())\n\n", ".sum() / 1000)\n\n"), "with each sample twice its value"),
        "weights by place": (
            (
                "== label).mean())",
                "== label) @ (1.0 + __import__('numpy').arange(len(label))) / sum(range(1, 1 + len(label))))",
            ),
            "in another order its value",
        ),
        "an influence of another score": (
            ("(right - right.mean())", "(probability - probability.mean(0))[:, 1]"),
            "and influence says",
        ),
        "an influence without 1/n": ((" / len(label)\n", "\n"), "by 0.0125 on average, and influence says 0.499"),
        "parts that are not those of the value": (
            (
                "    def influence",
                "    def per_sample(self, label, probability):\n"
                "        return probability[range(len(label)), label]\n\n    def influence",
            ),
            "and the mean of per_sample",
        ),
        "a guess beyond the end": (
            ("    def influence", "    def chance(self, shares):\n        return 1.5\n\n    def influence"),
            "its chance is 1.5",
        ),
    },
    "log_loss": {
        "a value below the least": (("percent = False", "percent = False\n    least = 1.0"), "from 1.0 to inf")
    },
    "flip": {
        "a flip whose masks stay": (('"moves"', '"stays"'), "does not stay in its mask; say mask = 'moves'"),
        "images that change places": (
            ("x.flip(-1), x)", "x.flip(-1), x).flip(0)"),
            "images of a batch mix or change places",
        ),
    },
    "invert": {
        "a shift by one pixel": (("255 - x", "x.roll(1, -1)"), "does not stay in its mask"),
        "a crop whose masks stay": (("255 - x", "x[:, :, 1:-1, 1:-1]"), r"becomes \(10, 10\) and its mask \(12, 12\)"),
        "the mean of a batch": (("255 - x", "x - x.mean()"), "these rows change"),
        "a deviation of zero": (("255 - x", "x / x.std((1, 2, 3), keepdim=True)"), "an image of 0 everywhere becomes"),
        "a view of channels": (("255 - x", "(255 - x.view(len(x), -1)).view(x.shape)"), r"Use .reshape\(...\) instead"),
    },
    "mirror": {
        "masks that preparation leaves": (
            (MIRROR[MIRROR.index("\n    def prepare_mask") :], ""),
            "override prepare_mask",
        ),
        "masks that preparation turns otherwise": (("mask[:, ::-1]", "mask[::-1]"), "override prepare_mask"),
        "masks that preparation mixes": (("mask[:, ::-1]", "(mask[:, ::-1] // 2)"), "mixes the classes of a mask"),
    },
    "brightness": {"images that mix": (("return x *", "return 0.3 * x.roll(1, 0) + 0.7 * x *"), "these rows change")},
    "centred": {
        "statistics by batch": (("x.mean((1, 2, 3)).sum()", "x.mean()", "n += len(x)", "n += 1"), "fit gives other"),
        "a transform in the place of a tuple": (
            ("(Centred(level=float(own)),)", "Centred(level=float(own))"),
            "a tuple",
        ),
    },
    "worst_sites": {
        "a figure that stays open": (
            _before(PICTURE, "__import__('matplotlib.pyplot').pyplot.figure()"),
            "figures that pyplot holds open: close them",
        ),
        "a table that is written": (_before(PICTURE, "means.to_csv('means.csv')"), "it writes means.csv"),
        "a figure of bytes": ((DRAWN, f"{DRAWN}.encode()"), "it draws bytes, and must return the SVG as text"),
        "a column in the results": (_after(TABLES, "scores['p'] = 1"), "changes the tables of `results`"),
        "a date": (
            ("set_xlabel(results.headline.title)", "set_xlabel(str(__import__('datetime').date.today()))"),
            "date.today: it differs each time",
        ),
        "a script": ((DRAWN, f"{DRAWN}.replace('</svg>', '<script>x</script></svg>')"), "it holds a script"),
        "an image of another page": (
            (DRAWN, f"{DRAWN}.replace('</svg>', '<a href=\"https://example.org\"/></svg>')"),
            "points out of the page",
        ),
        "images that it does not tell of": (
            (DRAWN, f"{DRAWN}.replace('</svg>', '<image href=\"data:,\"/></svg>')"),
            "say `shows_images = True`",
        ),
        "a caption that reads predictions": (
            ('        return f"Mean', '        results.mistakes(3)\n        return f"Mean'),
            "do that in `draw`",
        ),
        "a caption of nothing": (
            ('        return f"Mean', '        return None\n        return f"Mean'),
            "caption is a NoneType",
        ),
    },
}
"""By plug-in: each mistake, the changes that make it, and words of what the contract finds first."""


CASES = [pytest.param(plugin, mistake, id=mistake) for plugin, mistakes in MISTAKES.items() for mistake in mistakes]
"""Named by the mistake alone, since `-k NAME` chooses the tests of a plug-in of the reader."""


def code(name: str) -> str:
    """Return the code of a plug-in of this module, or of one of the documentation."""
    return SOURCES.get(name) or source(name)


@pytest.mark.parametrize(("plugin", "mistake"), of_day(CASES, 4))
@pytest.mark.filterwarnings("ignore")
def test_the_contract_finds_what_no_run_shows(plugin: str, mistake: str, tmp_path: Path) -> None:
    changes, words = MISTAKES[plugin][mistake]
    fault = first_fault(tmp_path, replaced(code(plugin), *changes))
    assert re.search(words, fault), fault


RIGHT = {
    **{f"as it is: {name}": (name,) for name in ("flip", "invert", "mirror", "centred", "hits")},
    "moments of a copy": ("blend", "moments(x)", "moments(x.clone())"),
}


@pytest.mark.parametrize("plugin", RIGHT)
def test_the_contract_accepts_what_is_right(plugin: str, tmp_path: Path) -> None:
    name, *changes = RIGHT[plugin]
    assert first_fault(tmp_path, replaced(code(name), *changes)) == ""
