"""Hugging Face models: configurations by type, a head to train, and a batch for it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import torch
import transformers
from torch import nn

from chainstay.cli.endings import CommandLineError

__all__ = ["batch_for", "configured", "headed", "usual_shape"]

_TASKS: Final[Mapping[str, str]] = {
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "image-classification": "AutoModelForImageClassification",
    "audio-classification": "AutoModelForAudioClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
}
"""By preference: a type that has several heads is trained as it mostly is."""
_USUAL_LENGTH: Final = 512


def configured(kind: str, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401  # of its own class
    """The configuration of a type of model, with `settings` in place of defaults.

    Raises:
        CommandLineError: There is no such type, or it has no such setting.
    """
    transformers.logging.set_verbosity_error()  # it comments on settings that it will not need
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        close = get_close_matches(kind, list(known.keys()), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "hf: wants a type such as gpt2"
        raise CommandLineError(f"transformers has no model type {kind!r}; {hint}")
    default = transformers.AutoConfig.for_model(kind)
    for name in settings:
        if not hasattr(default, name):
            close = get_close_matches(name, list(default.to_dict()), n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "see its documentation"
            raise CommandLineError(f"the configuration of {kind} has no {name!r}; {hint}")
    config = transformers.AutoConfig.for_model(kind, **settings)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a cache is for generating
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # heads that look for padding need one
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id  # labels are shifted behind it
    return config


def headed(config: Any, task: str | None) -> nn.Module:  # noqa: ANN401  # as above
    """A model of that configuration that computes a loss of its own.

    Args:
        config: Of the model.
        task: What it is trained for; by default what models of this type mostly are.

    Raises:
        CommandLineError: There is no such task, or no such head for this type.
    """
    possible = [name for name in _TASKS if type(config) in _mapping(name)]
    if getattr(config, "is_encoder_decoder", False):
        possible.sort(key=lambda name: name != "seq2seq-lm")
    elif "seq2seq-lm" in possible:
        possible.remove("seq2seq-lm")
    if task is None and possible:
        task = possible[0]
    if task not in possible:
        asked = f"no head for task={task}" if task else "no head that chainstay knows to train"
        has = f"it has {', '.join(possible)}" if possible else "write a file with a function"
        raise CommandLineError(f"hf:{config.model_type} has {asked}; {has}")
    model: nn.Module = getattr(transformers, _TASKS[task]).from_config(config)
    model.chainstay_task = task  # type: ignore[assignment]  # a plain attribute
    return model


def _mapping(task: str) -> Any:  # noqa: ANN401  # of transformers
    return getattr(transformers, _TASKS[task])._model_mapping  # noqa: SLF001  # no public way


def usual_shape(model: nn.Module, config: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Of a small batch that the model is made for."""
    if _task_of(model) == "image-classification":
        side = getattr(config, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return (8, getattr(config, "num_channels", 3), height, width)
    if _task_of(model) == "audio-classification":
        return (1, 16_000)
    return (1, min(_USUAL_LENGTH, getattr(config, "max_position_embeddings", _USUAL_LENGTH)))


def batch_for(
    model: nn.Module,
    config: Any,  # noqa: ANN401  # of its own class
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    """Keyword arguments of a call that gives a loss.

    Raises:
        CommandLineError: The shape has too many or too few sizes, or is too long.
    """
    task = _task_of(model)
    sizes = {"image-classification": 4}.get(task, 2)
    if len(shape) != sizes:
        wanted = "8x3x224x224" if sizes == 4 else "4x512 (sequences x tokens)"
        raise CommandLineError(
            f"--input {'x'.join(map(str, shape))} has {len(shape)} sizes; hf:{config.model_type} "
            f"takes {sizes}, as in {wanted}"
        )
    classes = torch.zeros(shape[0], dtype=torch.long, device=device)
    if task == "image-classification":
        return {"pixel_values": torch.randn(shape, device=device, dtype=dtype), "labels": classes}
    if task == "audio-classification":
        return {"input_values": torch.randn(shape, device=device, dtype=dtype), "labels": classes}
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and 0 < longest < shape[1]:
        raise CommandLineError(
            f"--input {'x'.join(map(str, shape))} has sequences of {shape[1]} tokens, and this "
            f"hf:{config.model_type} takes up to {longest}; add max_position_embeddings={shape[1]} "
            "to the model's settings"
        )
    tokens = torch.randint(config.get_text_config().vocab_size, shape, device=device)
    labels: dict[str, torch.Tensor] = {"labels": tokens}
    if task == "sequence-classification":
        labels = {"labels": classes}
    elif task == "token-classification":
        labels = {"labels": torch.zeros_like(tokens)}
    elif task == "question-answering":
        labels = {"start_positions": classes, "end_positions": classes}
    return {"input_ids": tokens, **labels}


def _task_of(model: nn.Module) -> str:
    return str(getattr(model, "chainstay_task", "causal-lm"))
