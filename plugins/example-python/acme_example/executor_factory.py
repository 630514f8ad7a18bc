"""What the host calls: reads the device config, opens the instrument, makes the executor.

Packages with a module of this name and this function are also found where nothing is configured.
"""

from __future__ import annotations

from coda_executor import ConfigError, Settings, read_device_config

from acme_example.executor import AcmeExecutor
from acme_example.instrument import Instrument


def create_executor(settings: Settings) -> AcmeExecutor:
    config = read_device_config(settings)
    shot_us = config.get("shot_us", 2)
    if not isinstance(shot_us, (int, float)) or shot_us < 0:
        raise ConfigError(f"shot_us is {shot_us!r}; set it to microseconds, 0 or more")
    return AcmeExecutor(Instrument(str(config.get("host", "127.0.0.1")), shot_us))
