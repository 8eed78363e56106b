"""Hugging Face heads that the command line does not build by name: functions for ``FILE.py:``."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_Call = tuple[nn.Module, tuple[()], dict[str, torch.Tensor]]


def audio_classification() -> _Call:
    """wav2vec 2.0 on samples of sound."""
    config = transformers.Wav2Vec2Config(
        **_SMALL,
        classifier_proj_size=8,
        num_conv_pos_embedding_groups=2,
        conv_dim=(8,) * 7,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    call = {"input_values": torch.randn(1, 2000), "labels": torch.zeros(1, dtype=torch.long)}
    return model, (), call


def sequence_classification() -> _Call:
    """One class for a text."""
    call = {"input_ids": _tokens(), "labels": torch.zeros(2, dtype=torch.long)}
    return transformers.BertForSequenceClassification(_bert()), (), call


def token_classification() -> _Call:
    """One class for each token."""
    call = {"input_ids": _tokens(), "labels": torch.zeros(2, 16, dtype=torch.long)}
    return transformers.BertForTokenClassification(_bert()), (), call


def question_answering() -> _Call:
    """The first and the last token of an answer."""
    ends = {name: torch.zeros(2, dtype=torch.long) for name in ("start_positions", "end_positions")}
    return transformers.BertForQuestionAnswering(_bert()), (), {"input_ids": _tokens(), **ends}


def _bert() -> transformers.BertConfig:
    return transformers.BertConfig(**_SMALL, vocab_size=64, max_position_embeddings=16)


def _tokens() -> torch.Tensor:
    return torch.randint(64, (2, 16))
