"""Hugging Face models: configurations by type, a head to train, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import torch
import transformers
from torch import nn

from chainstay.cli.exit_codes import CommandLineError

__all__ = ["build_config", "default_shape", "make_batch", "model_with_head"]

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
"""Tasks in order of preference: a type that has several heads is trained for the first."""
_USUAL_LENGTH: Final = 512
_SPECTROGRAMS: Final[Mapping[str, Callable[[Any], tuple[int, int]]]] = {
    "audio-spectrogram-transformer": lambda config: (config.max_length, config.num_mel_bins),
    "wav2vec2-bert": lambda config: (_USUAL_LENGTH, config.feature_projection_input_dim),
    "whisper": lambda config: (config.num_mel_bins, 2 * config.max_source_positions),
}
"""Models of spectrograms, with the sizes of one; all other audio models take samples."""


def build_config(kind: str, settings: Mapping[str, Any]) -> Any:  # noqa: ANN401  # of its own class
    """Return the configuration of a type of model, with `settings` in place of defaults.

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


def model_with_head(config: Any, task: str | None) -> nn.Module:  # noqa: ANN401  # as above
    """Build a model of that configuration that computes a loss of its own.

    Args:
        config: Configuration of the model.
        task: Task that it is trained for; None for the usual one of this type.

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
        missing = f"no head for task={task}" if task else "no head that chainstay can train"
        has = f"it has {', '.join(possible)}" if possible else "write a file with a function"
        raise CommandLineError(f"hf:{config.model_type} has {missing}; {has}")
    config.architectures = config.architectures or []  # where heads are many, the first is taken
    model: nn.Module = getattr(transformers, _TASKS[task]).from_config(config)
    model.chainstay_task = task  # type: ignore[assignment]  # a plain attribute
    return model


def _mapping(task: str) -> Any:  # noqa: ANN401  # of transformers
    return getattr(transformers, _TASKS[task])._model_mapping  # noqa: SLF001  # no public name for it


def default_shape(model: nn.Module, config: Any) -> tuple[int, ...]:  # noqa: ANN401  # as above
    """Return the shape of a small batch that the model is made for."""
    task = _task_of(model)
    if task == "image-classification":
        seen = getattr(config, "vision_config", config)
        side = getattr(seen, "image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return (8, getattr(seen, "num_channels", 3), height, width)
    if task == "audio-classification":
        spectrogram = _SPECTROGRAMS.get(config.model_type)
        return (1, 16_000) if spectrogram is None else (1, *spectrogram(config))
    most, _ = _positions(model, config)
    return (1, min(_USUAL_LENGTH, most or _USUAL_LENGTH))


def make_batch(
    model: nn.Module,
    config: Any,  # noqa: ANN401  # of its own class
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, torch.Tensor]:
    """Return keyword arguments of a call that gives a loss.

    Raises:
        CommandLineError: The shape has too many or too few sizes, or is too long.
    """
    task, usual = _task_of(model), default_shape(model, config)
    text = "x".join(map(str, shape))
    if len(shape) != len(usual):
        raise CommandLineError(
            f"--input {text} has {len(shape)} sizes; hf:{config.model_type} takes {len(usual)}, "
            f"as in {'x'.join(map(str, usual))}"
        )
    if task in ("image-classification", "audio-classification"):
        values = torch.randn(shape, device=device, dtype=dtype)
        return {
            str(model.main_input_name): values,
            "labels": _classes(config, shape[0], device, dtype),
        }
    most, reserved = _positions(model, config)
    if most is not None and most < shape[1]:
        raise CommandLineError(
            f"--input {text} has sequences of {shape[1]} tokens, and this hf:{config.model_type} "
            f"takes up to {most}; add max_position_embeddings={shape[1] + reserved} to the "
            "model's settings"
        )
    # Where there is no vocabulary, tokens are characters.
    vocabulary = getattr(config.get_text_config(), "vocab_size", 128)
    tokens = torch.randint(vocabulary, shape, device=device)
    if task == "sequence-classification":
        if config.is_encoder_decoder:  # which looks at the one end of each sequence
            tokens[tokens == config.eos_token_id] = config.pad_token_id
            tokens[:, -1] = config.eos_token_id
        return {"input_ids": tokens, "labels": _classes(config, shape[0], device, dtype)}
    if task == "token-classification":
        return {"input_ids": tokens, "labels": torch.zeros_like(tokens)}
    if task == "question-answering":
        first = torch.zeros(shape[0], dtype=torch.long, device=device)
        return {"input_ids": tokens, "start_positions": first, "end_positions": first}
    return {"input_ids": tokens, "labels": tokens}


def _classes(config: Any, batch: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401  # as above
    """Return the first class for each, or as many numbers as there are labels."""
    if config.problem_type in ("multi_label_classification", "regression"):
        return torch.zeros((batch, config.num_labels), dtype=dtype, device=device)
    return torch.zeros(batch, dtype=torch.long, device=device)


def _positions(model: nn.Module, config: Any) -> tuple[int | None, int]:  # noqa: ANN401  # as above
    """Return the most tokens that have a position, or None, and the reserved positions.

    RoBERTa and its kin count positions from behind the one of padding.
    """
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None, 0
    for name, module in model.named_modules():
        if name.endswith("position_embeddings"):
            padding = getattr(module, "padding_idx", None)
            reserved = 0 if padding is None else int(padding) + 1
            return most - reserved, reserved
    return most, 0


def _task_of(model: nn.Module) -> str:
    return str(getattr(model, "chainstay_task", "causal-lm"))
