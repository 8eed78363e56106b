"""The release of torch that the tests run on, where it decides what they can ask for."""

from __future__ import annotations

from typing import Final

import torch
from torch.torch_version import TorchVersion

IS_TORCH_2_6: Final = TorchVersion(torch.__version__) < "2.7"
"""The oldest one that chainstay takes."""
