"""Lightning's ``Trainer``: a part of the module trains within a budget from the first batch on."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from chainstay.integrations.first_call import FitSettings, fit_at_first_call, unfit_if_fitted


class FitCallback(Callback):  # type: ignore[misc]  # the library's own types are not read
    """Fits one part of a LightningModule on the first batch; afterwards it is as it was.

    Args:
        part: Path of the part, ``"model"`` for what is assigned to ``self.model``. It must
            be called as a module in ``training_step``.
        settings: The settings, as for `chainstay.fit`.

    Example::

        Trainer(callbacks=[FitCallback("model", FitSettings(budget="8GiB"))]).fit(module)
    """

    def __init__(self, part: str, settings: FitSettings) -> None:
        self.part = part
        self.settings = settings

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # as Trainer calls it
        """Let the part wait for its first batch."""
        fit_at_first_call(pl_module.get_submodule(self.part), self.settings)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # as Trainer calls it
        """The part is plain again."""
        unfit_if_fitted(pl_module.get_submodule(self.part))

    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002  # as Trainer calls it
        pl_module: LightningModule,
        exception: BaseException,  # noqa: ARG002  # likewise
    ) -> None:
        """Give the part back as it was when training breaks off."""
        unfit_if_fitted(pl_module.get_submodule(self.part))
