"""Imports every module that registers checks."""

from . import (  # noqa: F401
    accuracy,
    bits,
    device,
    few_sms,
    kernels,
    library,
    package,
    semaphore,
    sequences,
    sizes,
    transforms,
    windows,
)
