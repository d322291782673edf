"""Wrong algorithms and add-ons: the contract finds each, and says in a line what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from broken import first_fault, replaced
from rotation import of_day

ALGORITHM = '''"""An extrapolated step of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from torch import Tensor

SEEN: list[object] = []


class Extrapolated(Algorithm):
    """FedAvg whose server takes a longer step where the clients' changes disagree."""

    paper = "control"
    eps: float = Field(1e-3, ge=0, description="added to the squared length of the mean change")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"m": server.zeros()}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"c": server.zeros()}

    def begin(self, local: Local) -> None:
        local.state["c"].add_(local.params)

    def correct(self, local: Local) -> None:
        local.grad.mul_(0.9)

    def report(self, local: Local) -> dict[str, Tensor]:
        change = local.params - local.received_params
        return {"shared": local.shared, "square": change.square().sum().reshape(1)}

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        change = mean.params - server.params
        server.state["m"].copy_(change)
        rate = mean["square"] / (2 * (change.square().sum() + self.eps))
        server.params.add_((1 + rate) * change)
'''
LAST = "        server.params.add_((1 + rate) * change)\n"
BEGIN = '        local.state["c"].add_(local.params)\n'
LOSS = "\n    def loss(self, local: Local, x: Tensor, y: Tensor) -> object:\n"
HOOKS = ALGORITHM[ALGORITHM.index("    eps:") :]
WRONG = {
    "A01 no docstring": (
        ('    """FedAvg whose server takes a longer step where the clients\' changes disagree."""\n\n', ""),
        "it needs its own docstring",
    ),
    "A02 no description": (
        (', description="added to the squared length of the mean change"', ""),
        r"Field\(description",
    ),
    "A03 state of a wrong length": (
        ('{"m": server.zeros()}', '{"m": server.zeros()[:3]}'),
        r"size of tensor a \(3\) must match|shape",
    ),
    "A04 the loss alone": (
        (LAST, f"{LAST}{LOSS}        return local.objective(local, x, y)[0]\n"),
        "loss must return two tensors.*it returns a Tensor",
    ),
    "A05 a loss of each sample": (
        (LAST, f"{LAST}{LOSS}        logits = local.model(x)\n        return logits.square().sum(1), logits\n"),
        r"mean loss of the batch, of shape \(\).*their shapes are \(\d+,\) and",
    ),
    "A06 a report without shared": (('"shared": local.shared, ', ""), "no client reports 'shared'"),
    "A07 state in an attribute": (
        (LAST, f"{LAST}        self.last = change\n"),
        "it sets self.last, and a plug-in never",
    ),
    "A08 state in a module global": (
        (LAST, f"{LAST}        SEEN.append(float(change.sum()))\n        server.params.add_(0.01 * len(SEEN))\n"),
        "it changes SEEN of its file",
    ),
    "A09 a function in the state": (
        (BEGIN, f'{BEGIN}        local.state["f"] = lambda: 1\n'),
        "after begin, the state must hold tensors by name: 'f' is a function",
    ),
    "A10 a number in the state": (
        (LAST, f'{LAST}        server.state["n"] = 1.0\n'),
        "after update, the state must hold tensors by name: 'n' is a float",
    ),
    "A11 NumPy's generator": (
        (LAST, f"{LAST}        import numpy as np\n\n        server.params.add_(0.01 * np.random.normal())\n"),
        "it changes NumPy's global generator: draw from",
    ),
    "A13 a generator of one state": (
        (BEGIN, f"        import torch\n\n        torch.manual_seed(0)\n{BEGIN}"),
        "begin sets torch's generator to one state in each round",
    ),
    "A14 a misspelt hook": (("def correct", "def corect"), r"line 17: Extrapolated.corect.*did you mean 'correct'\?"),
    "A15 another name of a hook": (("def update", "def aggregate"), "Extrapolated.aggregate: nothing would call it"),
    "A16 statistics that never move": (
        ("        server.average_statistics(mean)\n", ""),
        r"running statistics never move; call server\.average_statistics\(mean\)",
    ),
    "A17 a wrong signature": (
        ("def report(self, local: Local)", "def report(self)"),
        r"report takes \(self\), and is given",
    ),
    "A18 a view that is bound anew": (
        (LAST, "        server.params = mean.params\n"),
        "'params' of 'Server'.*no setter",
    ),
    "A19 a gradient that is bound anew": (
        ("local.grad.mul_(0.9)", "local.grad = local.grad * 0.9"),
        "correct binds local.grad to a new tensor; change it in place",
    ),
    "A20 a hook without effect": (
        (HOOKS, "\n    def correct(self, local: Local) -> None:\n        local.grad * 0.9\n"),
        "its trained networks have the bits of Algorithm",
    ),
    "A20 a hook that returns its result": (
        ("        local.grad.mul_(0.9)", "        return local.grad * 0.9"),
        "correct returns a Tensor; change its argument in place",
    ),
    "A21 state that grows": (
        (BEGIN, '        local.state["c"] = local.state["c"].repeat(2)\n'),
        "grows: it has the shape .* after two rounds, and .* after three",
    ),
    "A22 torch at import": (
        ("from pydantic", "import torch\nfrom pydantic"),
        r"import slow libraries inside of methods.*torch",
    ),
    "A23 clients that exchange by a global": (
        (BEGIN, f"{BEGIN}        SEEN.append(local.params.clone())\n        local.params.add_(0.01 * SEEN[0])\n"),
        "it changes SEEN of its file",
    ),
    "A24 the wrong sign": ((LAST, LAST.replace("add_", "sub_")), "the training loss rises from"),
    "A25 no paper": (('    paper = "control"\n', ""), "it needs `paper`"),
    "A26 two public classes": (
        ("class Extrapolated", "class Two:\n    pass\n\n\nclass Extrapolated"),
        r"one public class.*Two",
    ),
    "A27 a default beyond its bound": (("Field(1e-3", "Field(-1.0"), "greater than or equal to 0"),
    "A28 a syntax error": (("    def update(", "    def update(("), r"line \d+: cannot be imported: SyntaxError"),
    "A29 weights that are lost": ((LAST, "        server.shared.zero_()\n"), "the training loss|statistics never move"),
    "A29 a loop over names that do not exist": (
        (
            HOOKS,
            "\n    def correct(self, local: Local) -> None:\n"
            "        for name, parameter in local.model.named_parameters():\n"
            '            if "bn" in name:\n                parameter.grad.mul_(0.5)\n',
        ),
        "its trained networks have the bits of Algorithm",
    ),
    "a setting that nothing reads": (("+ self.eps", "+ 1e-3"), "no bit changes with eps: nothing reads it"),
}


@pytest.mark.parametrize("mistake", of_day(WRONG, 4))
def test_the_contract_finds_a_wrong_algorithm(mistake: str, tmp_path: Path) -> None:
    changes, words = WRONG[mistake]
    fault = first_fault(tmp_path, replaced(ALGORITHM, *changes))
    assert re.search(words, fault), fault


RIGHT = {
    "the plug-in itself": (),
    "A12 a keyed draw at the server": (
        LAST,
        f"{LAST}        import torch\n\n        server.params.add_(torch.rand_like(server.params), alpha=1e-6)\n",
    ),
    "A30 a number as a tensor of no axes": (".sum().reshape(1)", ".sum()"),
}
"""What looks like a mistake and is none: the engine keys torch's generator in update, and averages any shape."""


@pytest.mark.slow
@pytest.mark.parametrize("change", RIGHT)
def test_the_contract_accepts_a_right_algorithm(change: str, tmp_path: Path) -> None:
    assert first_fault(tmp_path, replaced(ALGORITHM, *RIGHT[change])) == ""


ADDON = '''"""Weights that stay near those of the start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.addons import Addon

if TYPE_CHECKING:
    from torch import Tensor

    from fedshift.algorithms import Local

SEEN: dict[str, object] = {}


class Near(Addon):
    """A penalty on the distance of the weights from those that the server sent."""

    paper = "control"
    alpha: float = Field(0.1, ge=0, description="weight of the penalty")

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from fedshift.algorithms import class_loss

        logits = local.model(x)
        far = sum(parameter.square().sum() for parameter in local.model.parameters())
        return class_loss(local, logits, y) + self.alpha * far, logits
'''
LOGITS = "        logits = local.model(x)\n"
RETURN = "        return class_loss(local, logits, y) + self.alpha * far, logits\n"
WRONG_ADDONS = {
    "B01 no docstring": (
        ('    """A penalty on the distance of the weights from those that the server sent."""\n\n', ""),
        "it needs its own docstring",
    ),
    "B02 a loss of each sample": (
        (RETURN, RETURN.replace("y) +", "y, reduction='none') +")),
        r"mean loss of the batch, of shape \(\).*their shapes are \(\d+,\)",
    ),
    "B03 the loss alone": ((RETURN, RETURN.replace(", logits\n", "\n")), "loss must return two tensors"),
    "B04 NumPy's generator": (
        (LOGITS, f"        import numpy as np\n\n{LOGITS}        logits = logits * np.random.uniform(0.9, 1.1)\n"),
        "it changes NumPy's global generator: draw from",
    ),
    "B06 a count in a module global": (
        (
            LOGITS,
            f'{LOGITS}        SEEN["n"] = SEEN.get("n", 0) + 1\n        logits = logits * (1 + 0.01 * SEEN["n"])\n',
        ),
        "it changes SEEN of its file",
    ),
    "B07 a misspelt hook": (("def loss", "def los"), r"Near.los: .*did you mean 'loss'\?"),
    "B08 state in an attribute": (
        (LOGITS, f"{LOGITS}        self.start = x\n"),
        "it sets self.start, and a plug-in never",
    ),
    "B09 weights of the first run in a module global": (
        (LOGITS, f'{LOGITS}        SEEN.setdefault("w", local.params.clone())\n'),
        "it changes SEEN of its file",
    ),
    "B10 no description": ((', description="weight of the penalty"', ""), r"Field\(description"),
    "an add-on without effect": (
        (" + self.alpha * far", ""),
        "its trained networks have the bits of FedAvg without it: none of its methods has an effect",
    ),
}


@pytest.mark.parametrize("mistake", of_day(WRONG_ADDONS, 4))
def test_the_contract_finds_a_wrong_addon(mistake: str, tmp_path: Path) -> None:
    changes, words = WRONG_ADDONS[mistake]
    fault = first_fault(tmp_path, replaced(ADDON, *changes))
    assert re.search(words, fault), fault


@pytest.mark.slow
@pytest.mark.parametrize("change", [(), (LOGITS, f"        x.add_(0.0)\n{LOGITS}")])
def test_the_contract_accepts_a_right_addon(change: tuple[str, ...], tmp_path: Path) -> None:
    """B05: a batch is the step's own copy, so that it may be changed in place."""
    assert first_fault(tmp_path, replaced(ADDON, *change)) == ""
