"""TENT: Wang et al. 2021, Tent: Fully Test-Time Adaptation by Entropy Minimization, section 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from ..core.errors import UserError
from ._base import Predict, Site
from ._steps import Steps, copies, entropies, put_back

if TYPE_CHECKING:
    from torch import Tensor, nn


class Tent(Steps):
    """Steps on gamma and beta that lower the entropy of each test batch's predictions.

    For a batch of n images, with logits z and p = softmax(z), a step of the optimiser lowers the mean entropy

        L = 1/n sum_i H(p_i),    H(p) = -sum_k p_k ln p_k,    dH/dz_k = -p_k (ln p_k + H(p)).

    It moves the scale gamma and the shift beta of all batch-norm layers, and nothing else. The layers normalise by the
    batch's mean and biased variance, through which the gradient flows; the training statistics are not used. All else
    is in evaluation mode, without dropout. A site is one pass: parameters and optimiser go on from batch to batch,
    and begin again at the next site. Nothing is sent, and no label is read.

    What is answered follows the authors' code: the logits of the last forward pass, which comes before the last step
    (`answer: before`). `answer: after` takes another pass after it. With `episodic`, parameters and optimiser also
    begin again at each batch. With one step and the answer from before it, no step would change any answer, so this
    combination is refused. Batch statistics without steps are `tsmobn` with momentum 0.

    Defaults: one step of Adam with beta1 0.9, beta2 0.999 and no weight decay, as in the authors' code for CIFAR-10-C.
    They take rate 0.001 for batches of 200 images. The rate here is 0.00016, which is theirs, scaled linearly to
    batches of 32 (our decision). Set `lr: 0.001, batch_size: 200` to compare with their numbers. For ImageNet they take
    `optimiser: sgd, lr: 0.00025, batch_size: 64`, whose momentum is 0.9.

    All batch-norm layers are adapted, and dropout stays off (our decision). The authors' code adapts two-dimensional
    batch norm alone, and puts the whole network in training mode.

    What to keep in mind:

    - The predictions can collapse into one class, above all with many batches, small batches, a large rate or many
      classes. The entropy falls then too, so a low entropy does not show success. Compare the classes predicted with
      `source`.
    - Batches that are sorted by class have statistics of their class. The default order is therefore shuffled.
    - The entropy is in nats and at most ln K for K classes. TENT compares it with no threshold, so K changes the
      gradient's size alone. Adam's steps hardly depend on that; rates of `sgd` do not carry over from other K.
    - A batch of one image gives a layer without spatial extent one value a channel, which has no variance. Such a batch
      is refused. Choose a batch size that does not leave one image over.
    - The rate must not be chosen by labels of the tested sites.
    - A network without batch norm, or whose batch norm has no gamma and beta, has nothing to adapt. The first answers
      as `source` does, the second as with the batch's statistics alone.
    """

    display_name = "TENT"
    steps: int = Field(1, ge=1, description="number of steps for each batch")
    episodic: bool = Field(False, description="forget all steps before each batch, not only before each site")
    answer: Literal["before", "after"] = Field(
        "before", description="answer by the logits from before the last step, or by a further pass after it"
    )

    @model_validator(mode="after")
    def _answer_depends_on_a_step(self) -> Self:
        """Raise UserError for settings under which no prediction would depend on any step."""
        if self.episodic and self.steps == 1 and self.answer == "before":
            raise UserError(
                "episodic",
                "has no effect with one step and answers from before the step",
                "set answer to after, or steps to 2 or more",
            )
        return self

    def stepping(self, model: nn.Module, parameters: list[nn.Parameter], site: Site) -> Predict:
        import torch

        trained, optimiser = copies(parameters), self.new_optimiser(parameters)

        def predict(x: Tensor) -> Tensor:
            nonlocal optimiser
            if self.episodic:
                put_back(parameters, trained)
                optimiser = self.new_optimiser(parameters)
            # The logits of the last pass are from before the last step, as in the authors' code.
            for _ in range(self.steps):
                logits = model(x)
                optimiser.zero_grad()
                entropies(logits).mean().backward()
                optimiser.step()
            if self.answer == "after":
                with torch.no_grad():
                    logits = model(x)
            return logits.detach()

        return predict
